//! TLS of a port in the configuration.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;

use crate::tls::{ClientAuth, Port, Settings, Tls};

/// `[zookeeper.tls]`, `[etcd.tls]`; each key is also a flag.
#[derive(Debug, Clone, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct TlsSection {
    /// The gateway's certificate and its chain (PEM).
    pub cert: Option<PathBuf>,
    /// Its key (PEM; default: in the certificate's file).
    pub key: Option<PathBuf>,
    /// CAs of clients' certificates (PEM).
    pub client_ca: Option<PathBuf>,
    /// none, want or need (default need with `client_ca`, none without).
    pub client_auth: Option<String>,
    /// plain, both or tls.
    pub mode: Option<String>,
}

/// What a protocol's ports take.
#[derive(Debug, Clone, Default)]
pub struct Ports {
    /// The port that is always there.
    pub port: Port,
    /// For a port that speaks TLS alone.
    pub tls: Option<Arc<Tls>>,
}

impl TlsSection {
    /// What the command line says wins.
    pub(super) fn under(self, flags: TlsSection) -> TlsSection {
        TlsSection {
            cert: flags.cert.or(self.cert),
            key: flags.key.or(self.key),
            client_ca: flags.client_ca.or(self.client_ca),
            client_auth: flags.client_auth.or(self.client_auth),
            mode: flags.mode.or(self.mode),
        }
    }

    /// Checks the section and reads its files. With a `secure` port beside it the plain port stays plain
    /// unless `mode` says otherwise; else certificates mean that nothing but TLS is taken: nobody who sets
    /// them up should find out later that plain text went on.
    pub(super) fn load(
        self,
        protocol: &str,
        secure: bool,
        alpn: &'static [&'static str],
        errors: &mut Vec<String>,
    ) -> Ports {
        let Some(cert) = self.cert else {
            let named = [
                ("tls-key", self.key.is_some()),
                ("tls-client-ca", self.client_ca.is_some()),
                ("tls-client-auth", self.client_auth.is_some()),
                (
                    "tls-mode",
                    self.mode.as_deref().is_some_and(|m| m != "plain"),
                ),
                ("secure-listen", secure),
            ];
            for (name, _) in named.iter().filter(|(_, given)| *given) {
                errors.push(format!(
                    "{protocol}-{name}: there is no TLS without {protocol}-tls-cert"
                ));
            }
            return Ports::default();
        };
        let client_auth = match (self.client_auth.as_deref(), &self.client_ca) {
            (None, None) | (Some("none"), _) => ClientAuth::None,
            (None | Some("need"), Some(_)) => ClientAuth::Need,
            (Some("want"), Some(_)) => ClientAuth::Want,
            (Some(asked @ ("want" | "need")), None) => {
                errors.push(format!(
                    "{protocol}-tls-client-auth: {asked} asks for {protocol}-tls-client-ca, the CA of the clients"
                ));
                ClientAuth::None
            }
            (Some(other), _) => {
                errors.push(format!(
                    "{protocol}-tls-client-auth: {other:?} is neither none, want nor need"
                ));
                ClientAuth::None
            }
        };
        let settings = Settings {
            key: self.key.unwrap_or_else(|| cert.clone()),
            cert,
            client_ca: self.client_ca,
            client_auth,
            alpn,
        };
        let tls = match Tls::load(settings) {
            Ok(tls) => Arc::new(tls),
            Err(all) => {
                errors.extend(all.iter().map(|error| format!("{protocol}-tls: {error}")));
                return Ports::default();
            }
        };
        let port = match self.mode.as_deref() {
            Some("plain") => Port::Plain,
            Some("both") => Port::Both(tls.clone()),
            Some("tls") => Port::Tls(tls.clone()),
            None if secure => Port::Plain,
            None => Port::Tls(tls.clone()),
            Some(other) => {
                errors.push(format!(
                    "{protocol}-tls-mode: {other:?} is neither plain, both nor tls"
                ));
                Port::Plain
            }
        };
        Ports {
            port,
            tls: Some(tls),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate and its key in one file, and a CA.
    fn files() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("a folder");
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
        let file = dir.path().join("server.pem");
        let text = made.cert.pem() + &made.signing_key.serialize_pem();
        std::fs::write(&file, text).expect("written");
        (dir, file)
    }

    #[test]
    fn a_port_takes_tls_alone_unless_it_is_said_otherwise() {
        let (_dir, file) = files();
        for (secure, mode, want) in [
            (false, None, "tls"),
            (true, None, "plain"),
            (false, Some("plain"), "plain"),
            (false, Some("both"), "both"),
            (true, Some("both"), "both"),
            (true, Some("tls"), "tls"),
        ] {
            let section = TlsSection {
                cert: Some(file.clone()),
                mode: mode.map(ToString::to_string),
                ..TlsSection::default()
            };
            let mut errors = Vec::new();
            let ports = section.load("zookeeper", secure, &[], &mut errors);
            let got = match ports.port {
                Port::Plain => "plain",
                Port::Both(_) => "both",
                Port::Tls(_) => "tls",
            };
            assert_eq!((got, errors), (want, vec![]), "{secure} {mode:?}");
            assert!(ports.tls.is_some());
        }
    }

    #[test]
    fn every_fault_of_a_section_is_named() {
        let (_dir, file) = files();
        let text = |text: &str| Some(text.to_owned());
        let cert = || TlsSection {
            cert: Some(file.clone()),
            ..TlsSection::default()
        };
        for (section, secure, needles) in [
            (TlsSection::default(), false, vec![]),
            (TlsSection::default(), true, vec!["zookeeper-secure-listen"]),
            (
                TlsSection {
                    key: Some(file.clone()),
                    client_auth: text("need"),
                    mode: text("both"),
                    ..TlsSection::default()
                },
                false,
                vec!["zookeeper-tls-key", "tls-client-auth", "tls-mode"],
            ),
            (
                TlsSection {
                    client_auth: text("want"),
                    mode: text("ssl"),
                    ..cert()
                },
                false,
                vec!["asks for zookeeper-tls-client-ca", "\"ssl\""],
            ),
            (
                TlsSection {
                    client_auth: text("maybe"),
                    ..cert()
                },
                false,
                vec!["\"maybe\""],
            ),
            (
                TlsSection {
                    client_ca: Some("/missing".into()),
                    key: Some("/lost".into()),
                    ..cert()
                },
                false,
                vec!["/lost", "/missing"],
            ),
        ] {
            let mut errors = Vec::new();
            section.clone().load("zookeeper", secure, &[], &mut errors);
            let all_named = needles.iter().zip(&errors).all(|(n, e)| e.contains(n));
            assert!(
                all_named && errors.len() == needles.len(),
                "{needles:?} in {errors:?} of {section:?}"
            );
        }
    }

    #[test]
    fn flags_win_over_the_file() {
        let file = TlsSection {
            cert: Some("a".into()),
            key: Some("b".into()),
            ..TlsSection::default()
        };
        let flags = TlsSection {
            cert: Some("c".into()),
            ..TlsSection::default()
        };
        let both = file.under(flags);
        assert_eq!((both.cert, both.key), (Some("c".into()), Some("b".into())));
    }
}
