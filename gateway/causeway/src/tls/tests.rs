use std::fs;
use std::net::Ipv4Addr;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, DnValue, IsCa, Issuer, KeyPair,
};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

/// A CA and what it signed, in files.
struct Pki {
    dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Pki {
    fn new() -> Pki {
        let dir = tempfile::tempdir().expect("a folder");
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "ca");
        let ca = params.self_signed(&key).expect("signed");
        fs::write(dir.path().join("ca.pem"), ca.pem()).expect("written");
        Pki {
            dir,
            issuer: Issuer::new(params, key),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes NAME.pem and NAME.key.
    fn sign(&self, name: &str, subject: &[(DnType, &str)]) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec!["localhost".into()]).expect("a name");
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in subject {
            let value = DnValue::Utf8String((*value).to_owned());
            params.distinguished_name.push(kind.clone(), value);
        }
        let signed = params.signed_by(&key, &self.issuer).expect("signed");
        fs::write(self.file(&format!("{name}.pem")), signed.pem()).expect("written");
        fs::write(self.file(&format!("{name}.key")), key.serialize_pem()).expect("written");
    }

    fn settings(&self, client_auth: ClientAuth) -> Settings {
        Settings {
            cert: self.file("server.pem"),
            key: self.file("server.key"),
            client_ca: Some(self.file("ca.pem")),
            client_auth,
            alpn: &[],
        }
    }

    /// A client that believes this CA, and shows the certificate of that name.
    fn client(&self, shows: Option<&str>) -> tokio_rustls::TlsConnector {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots(&self.file("ca.pem")).expect("a CA"));
        let config = match shows {
            None => builder.with_no_client_auth(),
            Some(name) => builder
                .with_client_auth_cert(
                    certificates(&self.file(&format!("{name}.pem"))).expect("a certificate"),
                    private_key(&self.file(&format!("{name}.key"))).expect("a key"),
                )
                .expect("they belong together"),
        };
        Arc::new(config).into()
    }
}

/// A PKI with a server `server` and a client `client`.
fn pki() -> Pki {
    let pki = Pki::new();
    pki.sign("server", &[(DnType::CommonName, "localhost")]);
    pki.sign("client", &[(DnType::CommonName, "c")]);
    pki
}

/// What the port gives a client, and whether the client could talk.
async fn meet(port: &Port, client: Option<tokio_rustls::TlsConnector>) -> (Option<Socket>, bool) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("a port");
    let address = listener.local_addr().expect("bound");
    let client = async {
        let mut stream = TcpStream::connect(address).await.expect("connected");
        let mut answer = [0; 4];
        match client {
            None => {
                stream.write_all(b"ruok").await.is_ok()
                    && stream.read_exact(&mut answer).await.is_ok()
            }
            Some(connector) => {
                let name = ServerName::try_from("localhost").expect("a name");
                let Ok(mut stream) = connector.connect(name, stream).await else {
                    return false;
                };
                stream.write_all(b"ruok").await.is_ok()
                    && stream.read_exact(&mut answer).await.is_ok()
            }
        }
    };
    let server = async {
        let (stream, remote) = listener.accept().await.expect("accepted");
        let mut socket = port.open(stream, remote).await?;
        let mut asked = [0; 4];
        socket.read_exact(&mut asked).await.ok()?;
        assert_eq!(&asked, b"ruok");
        socket.write_all(b"imok").await.ok()?;
        socket.flush().await.ok()?;
        Some(socket)
    };
    tokio::join!(server, client)
}

#[tokio::test]
async fn a_port_takes_what_it_is_set_to() {
    let pki = pki();
    let tls = Arc::new(Tls::load(pki.settings(ClientAuth::None)).expect("certificates"));
    for (port, plain, encrypted) in [
        (Port::Plain, true, false),
        (Port::Both(tls.clone()), true, true),
        (Port::Tls(tls.clone()), false, true),
    ] {
        // To a plain port a handshake is what any bytes are.
        if encrypted {
            let (socket, talked) = meet(&port, Some(pki.client(None))).await;
            assert!(talked, "{port:?}");
            assert!(matches!(socket, Some(Socket::Tls(_))), "{port:?}");
        }
        let (socket, talked) = meet(&port, None).await;
        assert_eq!(talked, plain, "{port:?}");
        assert_eq!(matches!(socket, Some(Socket::Plain(_))), plain, "{port:?}");
    }
}

#[tokio::test]
async fn a_client_shows_what_it_is_asked_for() {
    let (pki, stranger) = (pki(), pki());
    for (asked, nothing, own, foreign) in [
        (ClientAuth::None, Some(None), Some(None), Some(None)),
        (ClientAuth::Want, Some(None), Some(Some("CN=c")), None),
        (ClientAuth::Need, None, Some(Some("CN=c")), None),
    ] {
        let tls = Tls::load(pki.settings(asked)).expect("certificates");
        let port = Port::Tls(Arc::new(tls));
        // The stranger's client believes our CA, and shows a certificate of its own.
        fs::copy(stranger.file("client.pem"), pki.file("foreign.pem")).expect("copied");
        fs::copy(stranger.file("client.key"), pki.file("foreign.key")).expect("copied");
        for (shows, want) in [
            (None, nothing),
            (Some("client"), own),
            (Some("foreign"), foreign),
        ] {
            let (socket, talked) = meet(&port, Some(pki.client(shows))).await;
            let shown = socket.map(|socket| {
                let certificate = socket.client_certificate().map(subject);
                certificate.map(|name| name.expect("a name"))
            });
            let want = want.map(|name| name.map(ToString::to_string));
            assert_eq!(
                (shown, talked),
                (want.clone(), want.is_some()),
                "{asked:?} {shows:?}"
            );
        }
    }
}

/// Java takes a certificate that stands in its truststore itself, and those of `keytool -genkeypair` often do.
#[tokio::test]
async fn a_certificate_that_nobody_signed_may_be_named_itself() {
    let pki = pki();
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "alone");
    let alone = params.self_signed(&key).expect("signed");
    fs::write(pki.file("alone.pem"), alone.pem()).expect("written");
    fs::write(pki.file("alone.key"), key.serialize_pem()).expect("written");
    let port = || {
        let tls = Tls::load(pki.settings(ClientAuth::Need)).expect("certificates");
        Port::Tls(Arc::new(tls))
    };
    let client = pki.client(Some("alone"));
    assert!(!meet(&port(), Some(client.clone())).await.1);
    let both = [pki.file("ca.pem"), pki.file("alone.pem")].map(|f| fs::read(f).expect("there"));
    fs::write(pki.file("ca.pem"), both.concat()).expect("written");
    assert!(meet(&port(), Some(client)).await.1);
}

/// What is written without waiting all arrives, however slowly it is read.
#[tokio::test]
async fn a_slow_reader_gets_everything_in_order() {
    const LENGTH: usize = 4 << 20;
    let pki = pki();
    let tls = Tls::load(pki.settings(ClientAuth::None)).expect("certificates");
    let tls = Port::Tls(Arc::new(tls));
    for (port, client) in [(Port::Plain, None), (tls, Some(pki.client(None)))] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a port");
        let address = listener.local_addr().expect("bound");
        let byte = |at: usize| (at % 251) as u8;
        let client = async {
            let stream = TcpStream::connect(address).await.expect("connected");
            let mut stream: Box<dyn AsyncRead + Unpin> = match client {
                None => Box::new(stream),
                Some(connector) => {
                    let name = ServerName::try_from("localhost").expect("a name");
                    Box::new(connector.connect(name, stream).await.expect("encrypted"))
                }
            };
            let mut seen = 0;
            let mut buffer = vec![0; 64 << 10];
            loop {
                tokio::task::yield_now().await;
                match stream.read(&mut buffer).await.expect("read") {
                    0 => return seen,
                    more => {
                        for got in &buffer[..more] {
                            assert_eq!(*got, byte(seen), "at {seen}");
                            seen += 1;
                        }
                    }
                }
            }
        };
        let server = async {
            let (stream, remote) = listener.accept().await.expect("accepted");
            let socket = port.open(stream, remote).await.expect("open");
            let (_reader, mut writer) = socket.into_split();
            let all: Vec<u8> = (0..LENGTH).map(byte).collect();
            let (mut sent, mut waited) = (0, 0);
            while sent < LENGTH || writer.try_flush().is_err() {
                match writer.try_write(&all[sent..]) {
                    Ok(more) => sent += more,
                    Err(error) => {
                        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                        waited += 1;
                        writer.writable().await.expect("writable");
                    }
                }
            }
            writer.shutdown().await.expect("shut down");
            waited
        };
        let (waited, seen) = tokio::join!(server, client);
        assert_eq!(seen, LENGTH);
        assert!(
            waited > 0,
            "the socket took everything at once: nothing was tried"
        );
    }
}

#[tokio::test]
async fn renewed_certificates_are_used_without_a_restart() {
    let pki = pki();
    let tls = Arc::new(Tls::load(pki.settings(ClientAuth::Need)).expect("certificates"));
    let port = Port::Tls(tls.clone());
    let old = pki.client(Some("client"));
    assert!(meet(&port, Some(old.clone())).await.1);

    // Half of a renewal: the former pair stays in force.
    let key = fs::read(pki.file("server.key")).expect("there");
    let renewed = self::pki();
    fs::copy(renewed.file("server.key"), pki.file("server.key")).expect("copied");
    assert!(meet(&port, Some(old.clone())).await.1);
    fs::write(pki.file("server.key"), key).expect("written");
    assert!(meet(&port, Some(old.clone())).await.1);

    for file in ["server.pem", "server.key", "ca.pem"] {
        // A rename, as certificate managers do it.
        fs::copy(renewed.file(file), pki.file("fresh")).expect("copied");
        fs::rename(pki.file("fresh"), pki.file(file)).expect("renamed");
    }
    assert!(
        !meet(&port, Some(old)).await.1,
        "the former CA is not trusted"
    );
    assert!(meet(&port, Some(renewed.client(Some("client")))).await.1);
}

#[test]
fn each_fault_names_its_file_and_what_to_do() {
    let pki = pki();
    pki.sign("other", &[]);
    let write = |name: &str, text: &str| fs::write(pki.file(name), text).expect("written");
    write("empty", "");
    write(
        "encrypted",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
    );
    write(
        "garbage",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    );
    type Change = fn(&mut Settings, PathBuf);
    let cert: Change = |settings, file| settings.cert = file;
    let key: Change = |settings, file| settings.key = file;
    let ca: Change = |settings, file| settings.client_ca = Some(file);
    for (change, file, needle) in [
        (cert, "missing", "No such file"),
        (cert, "empty", "holds no certificate in PEM"),
        (cert, "garbage", "garbage"),
        (key, "missing", "No such file"),
        (key, "empty", "holds no private key in PEM"),
        (key, "encrypted", "openssl pkey -in"),
        (key, "other.key", "is not the key of the first certificate"),
        (ca, "missing", "No such file"),
        (ca, "empty", "holds no certificate in PEM"),
        (ca, "garbage", "garbage"),
    ] {
        let mut settings = pki.settings(ClientAuth::Need);
        let file = pki.file(file);
        change(&mut settings, file.clone());
        let errors = Tls::load(settings).map(drop).expect_err("a fault");
        let [error] = errors.as_slice() else {
            panic!("{errors:?}");
        };
        assert!(error.contains(needle), "{needle} is missing from: {error}");
        assert!(error.contains(&file.display().to_string()), "{error}");
    }
    let nothing = Settings {
        cert: pki.file("a"),
        key: pki.file("b"),
        client_ca: Some(pki.file("c")),
        client_auth: ClientAuth::Want,
        alpn: &[],
    };
    assert_eq!(Tls::load(nothing).map(drop).expect_err("faults").len(), 3);
}

#[tokio::test]
async fn one_who_says_nothing_holds_up_nobody() {
    let pki = pki();
    let tls = Arc::new(Tls::load(pki.settings(ClientAuth::None)).expect("certificates"));
    for port in [Port::Both(tls.clone()), Port::Tls(tls)] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a port");
        let address = listener.local_addr().expect("bound");
        let _silent = TcpStream::connect(address).await.expect("connected");
        let (stream, remote) = listener.accept().await.expect("accepted");
        tokio::select! {
            biased;
            socket = port.open(stream, remote) => panic!("opened: {}", socket.is_some()),
            (_, talked) = meet(&port, Some(pki.client(None))) => assert!(talked, "{port:?}"),
        }
    }
}
