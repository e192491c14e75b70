//! The name in a certificate, written as Java writes it: ACLs of scheme `x509` are compared as text with what
//! `X500Principal.getName()` gives, which is RFC 2253 in the JDK's reading of it (`sun.security.x509.AVA`).

use std::fmt::Write as _;

use der::asn1::{AnyRef, ObjectIdentifier};
use der::{Decode, Encode, ErrorKind, Reader, Result, SliceReader, Tag, Tagged};

const COMMON_NAME: &str = "2.5.4.3";

/// Names that the JDK writes for types; every other type is written as its number.
const KEYWORDS: &[(&str, &str)] = &[
    (COMMON_NAME, "CN"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "STREET"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
];

/// Characters that get a backslash wherever they stand.
const ESCAPED: &str = ",=+<>#;\"\\";

/// Name of the subject of a certificate in DER. The certificate has been checked; only its name is read.
pub fn subject(certificate: &[u8]) -> Result<String> {
    whole_name(certificate, name)
}

/// Common name of the subject, of several the last (Go: crypto/x509/pkix, FillFromRDNSequence); empty without one.
pub fn common_name(certificate: &[u8]) -> Result<String> {
    whole_name(certificate, |sequence| {
        let mut found = String::new();
        for set in parts(sequence)? {
            for pair in parts(set)? {
                let pair = parts(pair)?;
                let (kind, value) = (nth(&pair, 0)?, nth(&pair, 1)?);
                let kind = kind.decode_as::<ObjectIdentifier>()?;
                if kind.to_string() == COMMON_NAME && is_text(value.tag()) {
                    found = String::from_utf8_lossy(value.value()).into_owned();
                }
            }
        }
        Ok(found)
    })
}

fn whole_name(
    certificate: &[u8],
    read: impl FnOnce(AnyRef<'_>) -> Result<String>,
) -> Result<String> {
    let signed = nth(&parts(AnyRef::from_der(certificate)?)?, 0)?;
    let fields = parts(signed)?;
    // The version is left out when it is 1. Serial number, algorithm, issuer and validity follow.
    let versions = usize::from(nth(&fields, 0)?.tag().is_context_specific());
    read(nth(&fields, versions + 4)?)
}

/// The last part first.
fn name(sequence: AnyRef<'_>) -> Result<String> {
    let shown: Result<Vec<String>> = parts(sequence)?.into_iter().rev().map(part).collect();
    Ok(shown?.join(","))
}

fn part(set: AnyRef<'_>) -> Result<String> {
    let shown: Result<Vec<String>> = parts(set)?.into_iter().map(attribute).collect();
    Ok(shown?.join("+"))
}

fn attribute(pair: AnyRef<'_>) -> Result<String> {
    let pair = parts(pair)?;
    let kind = nth(&pair, 0)?.decode_as::<ObjectIdentifier>()?.to_string();
    let value = nth(&pair, 1)?;
    let keyword = KEYWORDS.iter().find(|(number, _)| *number == kind);
    Ok(match keyword {
        Some((_, keyword)) if is_text(value.tag()) => {
            format!(
                "{keyword}={}",
                escaped(&String::from_utf8_lossy(value.value()))
            )
        }
        keyword => {
            let mut shown = format!(
                "{}=#",
                keyword.map_or(kind.as_str(), |(_, keyword)| keyword)
            );
            for byte in value.to_der()? {
                let _ = write!(shown, "{byte:02x}");
            }
            shown
        }
    })
}

/// Kinds of strings that the JDK writes as text, whatever their encoding.
fn is_text(tag: Tag) -> bool {
    matches!(
        tag,
        Tag::PrintableString
            | Tag::TeletexString
            | Tag::Ia5String
            | Tag::BmpString
            | Tag::Utf8String
    )
}

fn escaped(value: &str) -> String {
    let is_space = |c: char| c == ' ' || c == '\r';
    let inner = value.trim_matches(is_space);
    // Of what is only spaces each is escaped.
    let lead = value.len() - value.trim_start_matches(is_space).len();
    let mut shown = String::with_capacity(value.len());
    for (at, c) in value.char_indices() {
        if c == '\0' {
            shown.push_str("\\00");
            continue;
        }
        let outside = at < lead || at >= lead + inner.len();
        if outside || ESCAPED.contains(c) {
            shown.push('\\');
        }
        shown.push(c);
    }
    shown
}

/// What a constructed value is made of.
fn parts(whole: AnyRef<'_>) -> Result<Vec<AnyRef<'_>>> {
    let mut reader = SliceReader::new(whole.value())?;
    let mut parts = Vec::new();
    while !reader.is_finished() {
        parts.push(reader.decode()?);
    }
    Ok(parts)
}

fn nth<'a>(parts: &[AnyRef<'a>], at: usize) -> Result<AnyRef<'a>> {
    parts
        .get(at)
        .copied()
        .ok_or_else(|| ErrorKind::Failed.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;

    /// Certificates made by `openssl req -x509 -multivalue-rdn -subj …`; each name is the JDK's own (17), from
    /// `getSubjectX500Principal().getName()`.
    #[test]
    fn names_are_written_as_by_java() {
        for (pem, want, common) in [
            (
                include_str!("names/multi.pem"),
                "CN=\\ \\ ,OU=a+OU=b,O=Acme\\, Inc.,C=DE",
                "  ",
            ),
            (
                include_str!("names/odd.pem"),
                "CN=\\ lead\\#trail\\ ,2.5.4.5=#130137,2.5.4.12=#0c0154,STREET=S 1,DC=com,UID=u1,\
                 1.2.840.113549.1.9.1=#16066140622e6465,O=Q \\\"x\\\" \\<y\\>\\;z\\\\w\\=1,L=München,\
                 ST=Bavaria,C=DE",
                " lead#trail ",
            ),
        ] {
            let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM");
            assert_eq!(subject(&certificate), Ok(want.to_owned()));
            assert_eq!(common_name(&certificate), Ok(common.to_owned()));
        }
    }

    #[test]
    fn what_is_no_certificate_is_an_error() {
        let pem = include_str!("names/multi.pem").as_bytes();
        let certificate = CertificateDer::from_pem_slice(pem).expect("PEM");
        for end in 0..certificate.len() {
            assert!(subject(&certificate[..end]).is_err(), "{end}");
        }
        for at in 0..certificate.len() {
            let mut broken = certificate.to_vec();
            broken[at] ^= 0xff;
            // Any answer will do.
            let _ = subject(&broken);
        }
    }
}
