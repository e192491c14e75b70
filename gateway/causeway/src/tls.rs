//! TLS on the ports: what a port takes, whom it believes, and certificates that change while it serves.

mod socket;
mod subject;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{AlertDescription, CertificateError, RootCertStore, ServerConfig};
use tokio::net::TcpStream;

pub use socket::{Reader, Socket, Writer, is_busy};
pub use subject::{common_name, subject};

/// First byte of every TLS connection, the record type of a handshake. A frame of ZooKeeper would be longer
/// than any with it, no word of its administrators begins with it, and no HTTP request.
const HANDSHAKE_RECORD: u8 = 0x16;

/// What a port takes.
#[derive(Debug, Clone, Default)]
pub enum Port {
    /// Plain text.
    #[default]
    Plain,
    /// Plain text and TLS (ZooKeeper: `client.portUnification`).
    Both(Arc<Tls>),
    /// TLS alone.
    Tls(Arc<Tls>),
}

impl Port {
    /// The connection once it is known what it speaks and whose it is. `None` when it is closed; the log
    /// says why. Waits for the client: whoever calls bounds the time.
    pub async fn open(&self, stream: TcpStream, remote: SocketAddr) -> Option<Socket> {
        let (tls, plain_too) = match self {
            Port::Plain => return Some(Socket::Plain(stream)),
            Port::Both(tls) => (tls, true),
            Port::Tls(tls) => (tls, false),
        };
        let mut first = [0];
        match stream.peek(&mut first).await {
            Ok(1) if first == [HANDSHAKE_RECORD] => {}
            Ok(1) if plain_too => return Some(Socket::Plain(stream)),
            Ok(1) => {
                tracing::info!(%remote, "closed: the client speaks no TLS, and this port nothing else");
                return None;
            }
            // Probes of load balancers connect and close.
            _ => return None,
        }
        let acceptor = tokio_rustls::TlsAcceptor::from(tls.current());
        match acceptor.accept(stream).await {
            Ok(stream) => Some(Socket::Tls(Box::new(stream))),
            Err(error) => {
                match tls.reason(&error) {
                    Some(reason) => tracing::info!(%remote, "no TLS with a client: {reason}"),
                    // Probes of load balancers connect and close.
                    None => {
                        tracing::debug!(%remote, %error, "a client left during its TLS handshake")
                    }
                }
                None
            }
        }
    }
}

/// What a client has to show (ZooKeeper: `ssl.clientAuth`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAuth {
    /// No certificate is asked for.
    None,
    /// A certificate is asked for; one that is shown has to be good.
    Want,
    /// Nobody comes in without a good certificate.
    Need,
}

/// Where certificates lie and who is let in. All files are PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The gateway's own certificate, then its chain.
    pub cert: PathBuf,
    /// Its key; may be the same file.
    pub key: PathBuf,
    /// Whose certificates of clients are believed.
    pub client_ca: Option<PathBuf>,
    /// What clients have to show.
    pub client_auth: ClientAuth,
    /// Protocols above TLS, the preferred one first; empty to leave it open.
    pub alpn: &'static [&'static str],
}

/// The certificates of a port, as its files have them: they are looked at with each handshake and read again
/// once they have changed, so that certificates are renewed without a restart.
pub struct Tls {
    settings: Settings,
    read: Mutex<Read>,
}

struct Read {
    stamps: Vec<Stamp>,
    config: Arc<ServerConfig>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.settings).finish()
    }
}

impl Tls {
    /// Reads the files. The errors name each file that is of no use, and what to do.
    pub fn load(settings: Settings) -> Result<Tls, Vec<String>> {
        let stamps = settings.stamps();
        let config = settings.read()?;
        Ok(Tls {
            settings,
            read: Mutex::new(Read { stamps, config }),
        })
    }

    fn current(&self) -> Arc<ServerConfig> {
        let mut read = self.read.lock();
        // Before they are read: what changes meanwhile is seen the next time.
        let stamps = self.settings.stamps();
        if read.stamps != stamps {
            read.stamps = stamps;
            let cert = self.settings.cert.display();
            match self.settings.read() {
                Ok(config) => {
                    tracing::info!(%cert, "certificates were renewed");
                    read.config = config;
                }
                // Half of a renewal looks like this.
                Err(errors) => tracing::warn!(
                    %cert,
                    "changed certificates are of no use, the former ones stay in force: {}",
                    errors.join("; ")
                ),
            }
        }
        read.config.clone()
    }

    /// Why there was no handshake, in words that lead on; `None` when the client just left.
    fn reason(&self, error: &io::Error) -> Option<String> {
        let tls = error.get_ref()?.downcast_ref::<rustls::Error>()?;
        let ca = self.settings.client_ca.as_deref().unwrap_or(Path::new(""));
        Some(match tls {
            rustls::Error::InvalidMessage(_) => "it does not speak TLS".into(),
            rustls::Error::NoCertificatesPresented => {
                "it shows no certificate, and client-auth is need".into()
            }
            rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
                format!("its certificate is of no CA in {}", ca.display())
            }
            rustls::Error::InvalidCertificate(error) => {
                format!("its certificate is refused: {error}")
            }
            rustls::Error::AlertReceived(
                alert @ (AlertDescription::UnknownCA
                | AlertDescription::BadCertificate
                | AlertDescription::CertificateUnknown
                | AlertDescription::CertificateExpired),
            ) => {
                let cert = self.settings.cert.display();
                format!("it does not trust the certificate in {cert} ({alert:?})")
            }
            other => other.to_string(),
        })
    }
}

/// What tells that a file was replaced or written.
type Stamp = Option<(SystemTime, u64, u64)>;

impl Settings {
    fn files(&self) -> impl Iterator<Item = &Path> {
        [&self.cert, &self.key]
            .into_iter()
            .chain(&self.client_ca)
            .map(PathBuf::as_path)
    }

    fn stamps(&self) -> Vec<Stamp> {
        self.files()
            .map(|file| {
                let metadata = std::fs::metadata(file).ok()?;
                let changed = metadata.modified().ok()?;
                Some((changed, metadata.len(), metadata.ino()))
            })
            .collect()
    }

    fn read(&self) -> Result<Arc<ServerConfig>, Vec<String>> {
        let mut errors = Vec::new();
        let mut keep = |error: String| errors.push(error);
        let chain = certificates(&self.cert).map_err(&mut keep);
        let key = private_key(&self.key).map_err(&mut keep);
        let roots = match (self.client_auth, &self.client_ca) {
            (ClientAuth::None, _) => Ok(None),
            (ClientAuth::Want | ClientAuth::Need, Some(file)) => {
                roots(file).map(Some).map_err(&mut keep)
            }
            (ClientAuth::Want | ClientAuth::Need, None) => {
                keep("a certificate of clients is asked for and no CA is named".into());
                Err(())
            }
        };
        let (Ok(chain), Ok(key), Ok(roots)) = (chain, key, roots) else {
            return Err(errors);
        };
        self.config(chain, key, roots).map_err(|error| vec![error])
    }

    fn config(
        &self,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        roots: Option<RootCertStore>,
    ) -> Result<Arc<ServerConfig>, String> {
        let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match roots {
            None => builder.with_no_client_auth(),
            Some(roots) => {
                let mut verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                if self.client_auth == ClientAuth::Want {
                    verifier = verifier.allow_unauthenticated();
                }
                let verifier = verifier.build().map_err(|error| error.to_string())?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| {
            let (cert, key) = (self.cert.display(), self.key.display());
            match error {
                rustls::Error::InconsistentKeys(_) => {
                    format!("{key}: is not the key of the first certificate in {cert}")
                }
                other => format!("{cert} with {key}: {other}"),
            }
        })?;
        config.alpn_protocols = self.alpn.iter().map(|p| p.as_bytes().to_vec()).collect();
        Ok(Arc::new(config))
    }
}

fn roots(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots
            .add(certificate)
            .map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(roots)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let shown = file.display();
    let text = contents(file)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let all = all.map_err(|error| format!("{shown}: is not PEM: {error}"))?;
    if all.is_empty() {
        return Err(format!(
            "{shown}: holds no certificate in PEM (out of a Java keystore: keytool -exportcert -rfc)"
        ));
    }
    Ok(all)
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let shown = file.display();
    let text = contents(file)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
        if String::from_utf8_lossy(&text).contains("ENCRYPTED") {
            return format!(
                "{shown}: its key is encrypted (openssl pkey -in {shown} -out … writes it without a password)"
            );
        }
        format!("{shown}: holds no private key in PEM: {error}")
    })
}

fn contents(file: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))
}
