//! Names of scheme `x509`: ZooKeeper takes what `new X500Principal(id)` takes
//! (`X509AuthenticationProvider.isValid`), which is more than RFC 2253. Only whether it does matters here: ids are
//! compared as text.

/// Keywords of attributes that the JDK knows (`sun.security.x509.AVAKeyword`), in any case of letters.
const KEYWORDS: &[&str] = &[
    "CN",
    "C",
    "L",
    "S",
    "ST",
    "O",
    "OU",
    "T",
    "IP",
    "STREET",
    "DC",
    "DNQUALIFIER",
    "DNQ",
    "SURNAME",
    "GIVENNAME",
    "INITIALS",
    "GENERATION",
    "EMAIL",
    "EMAILADDRESS",
    "UID",
    "SERIALNUMBER",
];

/// What may follow a backslash, beside two hexadecimal digits.
const ESCAPABLE: &str = ",=\n+<>#;\\\" ";

/// Whether `text` is a distinguished name. The empty one is.
pub(super) fn is_distinguished_name(text: &str) -> bool {
    if text.is_empty() {
        return true;
    }
    let mut rest = text;
    loop {
        match attribute(rest) {
            None => return false,
            Some("") => return true,
            // Behind a separator, which is one byte, something has to follow.
            Some(more) => rest = &more[1..],
        }
    }
}

/// What follows the first `keyword=value`, from its separator on.
fn attribute(text: &str) -> Option<&str> {
    let (keyword, value) = text.split_once('=')?;
    if !is_keyword(keyword.trim()) {
        return None;
    }
    let value = value.trim_start_matches([' ', '\n']);
    match value.chars().next() {
        Some('#') => hexadecimal(value),
        Some('"') => quoted(value),
        _ => plain(value),
    }
}

fn is_keyword(keyword: &str) -> bool {
    let upper = keyword.to_ascii_uppercase();
    KEYWORDS.contains(&upper.as_str()) || is_number(upper.strip_prefix("OID.").unwrap_or(&upper))
}

/// Numbers of an object identifier.
fn is_number(text: &str) -> bool {
    let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let parts: Vec<&str> = text.split('.').collect();
    let [first, second, ..] = parts.as_slice() else {
        return false;
    };
    let small = |part: &str, most: u32| part.parse::<u32>().is_ok_and(|number| number <= most);
    parts.iter().all(|part| is_digits(part))
        && (small(first, 1) && small(second, 39) || small(first, 2) && !small(first, 1))
}

/// The bytes of a value in DER.
fn hexadecimal(value: &str) -> Option<&str> {
    let digits = value.strip_prefix('#')?;
    let end = digits.find(is_separator).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at(end);
    if digits.len() % 2 != 0 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let byte = |at: usize| {
        let pair = digits.get(2 * at..2 * at + 2)?;
        usize::from_str_radix(pair, 16).ok()
    };
    // A tag, a length, and as many bytes as it says.
    let (_tag, length) = (byte(0)?, byte(1)?);
    let (ahead, length) = match length.checked_sub(0x80) {
        None => (2, length),
        Some(more @ 1..=3) => {
            let of_bytes = |sum, at| Some(sum * 256 + byte(2 + at)?);
            (2 + more, (0..more).try_fold(0, of_bytes)?)
        }
        Some(_) => return None,
    };
    (digits.len() / 2 == ahead + length).then_some(rest)
}

fn quoted(value: &str) -> Option<&str> {
    let mut rest = value.strip_prefix('"')?;
    loop {
        let c = rest.chars().next()?;
        match c {
            '"' => {
                let rest = rest[1..].trim_start_matches([' ', '\n']);
                let ends = rest.chars().next().is_none_or(is_separator);
                return ends.then_some(rest);
            }
            '\\' => rest = escaped(rest)?,
            _ => rest = &rest[c.len_utf8()..],
        }
    }
}

fn plain(value: &str) -> Option<&str> {
    let mut rest = value;
    while let Some(c) = rest.chars().next() {
        match c {
            '\\' => rest = escaped(rest)?,
            '<' | '>' | '"' => return None,
            _ if is_separator(c) => return Some(rest),
            _ => rest = &rest[c.len_utf8()..],
        }
    }
    Some(rest)
}

/// What follows a backslash and what it escapes.
fn escaped(text: &str) -> Option<&str> {
    let rest = text.strip_prefix('\\')?;
    let c = rest.chars().next()?;
    if c.is_ascii_hexdigit() {
        let second = rest.chars().nth(1)?;
        return second.is_ascii_hexdigit().then(|| &rest[2..]);
    }
    ESCAPABLE.contains(c).then(|| &rest[1..])
}

fn is_separator(c: char) -> bool {
    matches!(c, ',' | ';' | '+')
}

#[cfg(test)]
mod tests {
    use super::is_distinguished_name;

    /// Each answer is the JDK's own (17), to `new X500Principal(id)`.
    #[test]
    fn names_are_taken_as_by_java() {
        for taken in [
            "",
            "CN=a",
            "CN=a,O=b",
            "CN=a;O=b",
            "CN=a+OU=b",
            "cn=a",
            " CN = a ",
            "1.2.3=a",
            "1.2=a",
            "1.02=a",
            "OID.1.2.3=a",
            "oid.1.2.3=a",
            "1.2.3=#0401ff",
            "CN=#0c0161",
            "CN=#0c0161,O=b",
            "CN=#048101ff",
            "2.40=a",
            "CN=",
            "CN= ",
            "CN=\"\"",
            "CN=\"a,b\"",
            "CN=\"a\" ,O=b",
            "CN=a\\,b",
            "CN=a\\41b",
            "CN=a\\ ",
            "CN=\\ a",
            "CN=a b",
            "CN==a",
            "CN=\"a<b\"",
            "CN=\"a\\41\"",
            "CN=a=b",
            "CN=a#b",
            "CN=ü",
            "CN=a\nb",
            "C=DEU",
            "S=x",
            "EMAIL=x",
            "DNQ=x",
            "UID=x",
            "SERIALNUMBER=x",
            "CN=cl ient,OU=a+OU=b,O=Acme\\, Inc.,C=DE",
        ] {
            assert!(is_distinguished_name(taken), "{taken:?}");
        }
        for refused in [
            "a",
            "CN",
            "X=a",
            "E=x",
            "SN=x",
            "TITLE=x",
            "EMAIL ADDRESS=x",
            "CN=a,",
            ",CN=a",
            "CN=a,,O=b",
            "CN=a+",
            "CN=+",
            "+CN=a",
            "CN=\"a,b",
            "CN=\"a\"b",
            "CN=a\"b",
            "CN=a<b",
            "CN=a\\",
            "CN=a\\4",
            "CN=a\\zz",
            "CN=#a",
            "CN=#",
            "CN=#+O=b",
            "CN=#0c0161 ,O=b",
            "CN=\\é",
            "OU+CN=a",
            "CN=a;",
            " ",
            "1.2.3=#zz",
            "CN=#0c0261",
            "3.2=a",
            "1=a",
            "1.=a",
            "1.40=a",
        ] {
            assert!(!is_distinguished_name(refused), "{refused:?}");
        }
    }

    #[test]
    fn whatever_stands_there_is_answered() {
        let pieces = ["CN=", "\\", "#", "\"", ",", "é", "0", " ", "+", "="];
        for a in pieces {
            for b in pieces {
                for c in pieces {
                    for d in pieces {
                        is_distinguished_name(&format!("{a}{b}{c}{d}"));
                    }
                }
            }
        }
    }
}
