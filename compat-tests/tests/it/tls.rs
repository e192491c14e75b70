//! TLS on the ports, with unmodified clients: a port for TLS alone and one for both, certificates of clients and
//! what they are worth. What is checked of ZooKeeper's port holds for a real server too.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use causeway_compat_tests::clients::{clients_dir, output, python};
use causeway_compat_tests::process::{Server, free_port};
use causeway_compat_tests::target::{Legacy, ZooKeeperRelease, connect};
use causeway_compat_tests::{Gateway, Settings, Work, until};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, SanType,
};
use serde_json::Value;

const START: Duration = Duration::from_secs(60);

/// What the client's certificate is called, in Java's words.
const ORDERS: &str = "CN=orders\\+1,O=Acme\\, Inc.";

/// A CA and what it signed: NAME.pem with the certificate, then its key.
struct Pki<'w> {
    work: &'w Work,
    name: &'static str,
    issuer: Issuer<'static, KeyPair>,
}

impl<'w> Pki<'w> {
    /// With a server `server`, and clients `orders` and `billing`.
    fn new(work: &'w Work, name: &'static str) -> Result<Pki<'w>> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = names(&[(DnType::CommonName, name)]);
        let ca = params.self_signed(&key)?;
        let issuer = Issuer::new(params, key);
        let pki = Pki { work, name, issuer };
        fs::write(pki.file("ca"), ca.pem())?;
        pki.sign("server", &[(DnType::CommonName, "localhost")])?;
        pki.sign(
            "orders",
            &[
                (DnType::OrganizationName, "Acme, Inc."),
                (DnType::CommonName, "orders+1"),
            ],
        )?;
        pki.sign("billing", &[(DnType::CommonName, "billing")])?;
        Ok(pki)
    }

    fn sign(&self, name: &str, subject: &[(DnType, &str)]) -> Result<()> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec!["localhost".to_string()])?;
        params
            .subject_alt_names
            .push(SanType::IpAddress(Ipv4Addr::LOCALHOST.into()));
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.distinguished_name = names(subject);
        let signed = params.signed_by(&key, &self.issuer)?;
        let text = signed.pem() + &key.serialize_pem();
        Ok(fs::write(self.file(name), text)?)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.work.path(&format!("{}-{name}.pem", self.name))
    }

    fn shown(&self, name: &str) -> String {
        self.file(name).display().to_string()
    }
}

fn names(all: &[(DnType, &str)]) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    for (kind, value) in all {
        names.push(kind.clone(), *value);
    }
    names
}

/// A server with certificates: the gateway, or a real ZooKeeper.
trait Secured {
    /// Takes TLS alone.
    fn secure(&self) -> u16;
    /// Takes plain text; the gateway's takes TLS as well.
    fn plain(&self) -> u16;
    /// What it has logged.
    fn log(&mut self) -> String;
}

struct Ours {
    gateway: Gateway,
    secure: u16,
}

impl Ours {
    /// Certificates of clients are asked for on both ports; the first one takes plain text too.
    fn start(work: &Work, pki: &Pki<'_>, settings: Settings) -> Result<Ours> {
        let extra = format!(
            "zookeeper_secure_listen = \"127.0.0.1:0\"\n\
             [zookeeper]\nx509_superuser = \"CN=root\"\n\
             [zookeeper.tls]\ncert = {0:?}\nclient_ca = {1:?}\nmode = \"both\"\n\
             [etcd.tls]\ncert = {0:?}\nclient_ca = {1:?}\nclient_auth = \"want\"\nmode = \"both\"\n",
            pki.file("server"),
            pki.file("ca"),
        );
        let gateway = Gateway::start(work, "gateway", &Settings { extra, ..settings })?;
        let ports: Value = serde_json::from_slice(&fs::read(work.path("gateway.ports.json"))?)?;
        let secure = ports["zookeeper_secure"].as_u64().context("a port")?;
        Ok(Ours {
            gateway,
            secure: u16::try_from(secure)?,
        })
    }
}

impl Secured for Ours {
    fn secure(&self) -> u16 {
        self.secure
    }

    fn plain(&self) -> u16 {
        self.gateway.listeners()[0].1
    }

    fn log(&mut self) -> String {
        self.gateway.server().log()
    }
}

struct Real {
    server: Server,
    secure: u16,
    plain: u16,
}

impl Real {
    fn start(work: &Work, pki: &Pki<'_>) -> Result<Real> {
        let (secure, plain) = (free_port()?, free_port()?);
        let data = work.path("zookeeper");
        fs::create_dir_all(&data)?;
        let config = work.path("zookeeper.cfg");
        let text = format!(
            "tickTime=1000\ndataDir={}\nclientPort={plain}\nclientPortAddress=127.0.0.1\n\
             secureClientPort={secure}\nsecureClientPortAddress=127.0.0.1\n\
             serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
             ssl.keyStore.location={}\nssl.keyStore.type=PEM\n\
             ssl.trustStore.location={}\nssl.trustStore.type=PEM\nssl.clientAuth=need\n\
             admin.enableServer=false\n4lw.commands.whitelist=*\n",
            data.display(),
            pki.shown("server"),
            pki.shown("ca"),
        );
        fs::write(&config, text)?;
        let mut server = Server::spawn(
            "zookeeper",
            java(&ZooKeeperRelease::V3_9.classpath()?)
                .arg("-Dzookeeper.X509AuthenticationProvider.superUser=CN=root")
                .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
                .arg(config),
            work.path("zookeeper.log"),
        )?;
        until(START, "ZooKeeper listens", || {
            server.check_alive()?;
            connect(secure).map(drop)
        })?;
        Ok(Real {
            server,
            secure,
            plain,
        })
    }
}

impl Secured for Real {
    fn secure(&self) -> u16 {
        self.secure
    }

    fn plain(&self) -> u16 {
        self.plain
    }

    fn log(&mut self) -> String {
        self.server.log()
    }
}

fn java(classpath: &str) -> Command {
    let mut command = Command::new("java");
    command
        .args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
        .args(["-cp", classpath]);
    command
}

/// What kazoo says: over TLS when a certificate is named, which may be of nobody.
fn kazoo(pki: &Pki<'_>, port: u16, shows: Shows<'_>, args: &[&str]) -> Result<Vec<String>> {
    let mut command = Command::new(python());
    command
        .arg(clients_dir().join("python/application/secure.py"))
        .args(["--hosts", &format!("127.0.0.1:{port}")]);
    if !matches!(shows, Shows::PlainText) {
        command.args(["--ca", &pki.shown("ca")]);
    }
    if let Shows::Certificate(of, name) = shows {
        let file = of.shown(name);
        command.args(["--cert", &file, "--key", &file]);
    }
    let said = output(command.args(args))?;
    Ok(said.lines().map(ToString::to_string).collect())
}

#[derive(Clone, Copy)]
enum Shows<'p> {
    PlainText,
    Nothing,
    Certificate(&'p Pki<'p>, &'p str),
}

/// What the official client's command line says, over TLS with this certificate.
fn zk_cli(pki: &Pki<'_>, port: u16, name: &str, command: &[&str]) -> Result<String> {
    let own = |name: &str, value: &str| format!("-Dzookeeper.{name}={value}");
    // The server's jars lack what only the command line needs.
    let classpath = ZooKeeperRelease::V3_9.classpath()? + ":/usr/share/java/commons-cli.jar";
    output(
        java(&classpath)
            .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
            .arg(own("client.secure", "true"))
            .arg(own(
                "clientCnxnSocket",
                "org.apache.zookeeper.ClientCnxnSocketNetty",
            ))
            .arg(own("ssl.keyStore.location", &pki.shown(name)))
            .arg(own("ssl.keyStore.type", "PEM"))
            .arg(own("ssl.trustStore.location", &pki.shown("ca")))
            .arg(own("ssl.trustStore.type", "PEM"))
            .arg("org.apache.zookeeper.ZooKeeperMain")
            .args(["-server", &format!("localhost:{port}")])
            .args(command),
    )
}

#[test]
fn certificates_on_the_zookeeper_ports() {
    Work::scenario("tls-zookeeper", |work| {
        let (pki, stranger) = (Pki::new(work, "acme")?, Pki::new(work, "stranger")?);
        let mut ours = Ours::start(work, &pki, Settings::default())?;
        for port in [ours.secure(), ours.plain()] {
            mutual(&pki, &stranger, &mut ours, port).with_context(|| format!("port {port}"))?;
        }
        let log = ours.log();
        for why in [
            "it shows no certificate, and client-auth is need",
            "its certificate is of no CA in",
        ] {
            ensure!(log.contains(why), "the log says {why:?}");
        }
        beside_the_hostile(&pki, &ours)
    });
}

#[test]
fn a_real_zookeeper_answers_the_same_over_tls() {
    Work::scenario("tls-real", |work| {
        let (pki, stranger) = (Pki::new(work, "acme")?, Pki::new(work, "stranger")?);
        let mut real = Real::start(work, &pki)?;
        let port = real.secure();
        mutual(&pki, &stranger, &mut real, port)
    });
}

/// Who gets in on a port for certificates, and what their name is worth.
fn mutual(pki: &Pki<'_>, stranger: &Pki<'_>, server: &mut dyn Secured, port: u16) -> Result<()> {
    let own = format!("/own-{port}");
    let made = format!("acl x509:{ORDERS}");
    let check = |shows: Shows<'_>, port: u16, args: &[&str], want: &[&str]| -> Result<()> {
        let patience: &[&str] = match want {
            ["no connection"] => &["--patience", "3"],
            _ => &[],
        };
        let said = kazoo(pki, port, shows, &[args, patience].concat())?;
        ensure!(said == want, "{args:?}: {said:?} instead of {want:?}");
        Ok(())
    };
    let read = ["--read", own.as_str()];
    check(
        Shows::Certificate(pki, "orders"),
        port,
        &["--own", &own, "--read", &own],
        &[&made, "read OK", "done"],
    )?;
    check(
        Shows::Certificate(pki, "billing"),
        port,
        &read,
        &["read REFUSED", "done"],
    )?;
    pki.sign("root", &[(DnType::CommonName, "root")])?;
    check(
        Shows::Certificate(pki, "root"),
        port,
        &read,
        &["read OK", "done"],
    )?;
    // Nobody else comes in.
    check(Shows::Nothing, port, &read, &["no connection"])?;
    check(
        Shows::Certificate(stranger, "orders"),
        port,
        &read,
        &["no connection"],
    )?;
    // Plain text goes on beside it, and proves nothing.
    check(
        Shows::PlainText,
        server.plain(),
        &["--own", "/plain", "--read", &own],
        &["acl REFUSED", "read REFUSED", "done"],
    )?;
    let secure = server.secure();
    check(Shows::PlainText, secure, &read, &["no connection"])?;

    // The official client.
    let said = zk_cli(pki, port, "orders", &["whoami"])?;
    ensure!(
        said.lines()
            .any(|line| line.trim() == format!("x509: {ORDERS}")),
        "{said}"
    );
    let said = zk_cli(pki, port, "orders", &["get", &own])?;
    ensure!(said.lines().any(|line| line == "own"), "{said}");
    let refused = zk_cli(pki, port, "billing", &["get", &own]);
    let refused = refused.unwrap_or_else(|error| format!("{error:#}"));
    ensure!(refused.contains("Insufficient permission"), "{refused}");
    Ok(())
}

/// Half handshakes, silence and noise disturb nobody who is let in.
fn beside_the_hostile(pki: &Pki<'_>, ours: &Ours) -> Result<()> {
    let mut hostile = Vec::new();
    for port in [ours.secure(), ours.plain()] {
        for bytes in [
            &b""[..],
            &[0x16],
            &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc],
            &[0x16; 4096],
            &[0x16, 3, 1, 0xff, 0xff, 0, 0, 0],
        ] {
            for _ in 0..20 {
                let mut stream = connect(port)?;
                let _ = stream.write_all(bytes);
                hostile.push(stream);
            }
        }
    }
    for port in [ours.secure(), ours.plain()] {
        let own = format!("/beside-{port}");
        let said = kazoo(
            pki,
            port,
            Shows::Certificate(pki, "orders"),
            &["--own", &own],
        )?;
        ensure!(said.last().is_some_and(|l| l == "done"), "{said:?}");
    }
    // Those who never said who they are are gone after the time of a handshake.
    let mut silent = hostile.swap_remove(0);
    silent.set_read_timeout(Some(Duration::from_secs(15)))?;
    ensure!(silent.read(&mut [0; 8])? == 0, "it was left open");
    Ok(())
}

/// A certificate can be shown by its owner alone: before the take-over the ensemble sees a client without one.
#[test]
fn a_certificate_is_not_shown_to_the_ensemble() {
    Work::scenario("tls-relay", |work| {
        let pki = Pki::new(work, "acme")?;
        let legacy = Legacy::start(work)?;
        let ours = Ours::start(work, &pki, legacy.settings("proxy"))?;
        let shows = Shows::Certificate(&pki, "orders");
        let said = kazoo(&pki, ours.secure(), shows, &["--own", "/own"])?;
        ensure!(said == ["acl REFUSED", "done"], "{said:?}");
        let said = kazoo(&pki, ours.secure(), shows, &["--read", "/zookeeper"])?;
        ensure!(said == ["read OK", "done"], "{said:?}");
        Ok(())
    });
}

#[test]
fn both_versions_of_http_over_tls_and_without_on_the_etcd_port() {
    Work::scenario("tls-etcd", |work| {
        let (pki, stranger) = (Pki::new(work, "acme")?, Pki::new(work, "stranger")?);
        let ours = Ours::start(work, &pki, Settings::default())?;
        let port = ours.gateway.listeners()[1].1;

        let etcdctl = |args: &[&str], url: &str| {
            let mut command = Command::new("etcdctl");
            command
                .env("ETCDCTL_API", "3")
                .args([
                    "--endpoints",
                    url,
                    "--dial-timeout=5s",
                    "--command-timeout=5s",
                ])
                .args(args);
            output(&mut command)
        };
        let (secure, plain) = (
            format!("https://localhost:{port}"),
            format!("http://127.0.0.1:{port}"),
        );
        let ca = format!("--cacert={}", pki.shown("ca"));
        let file = pki.shown("orders");
        let shown = [format!("--cert={file}"), format!("--key={file}")];
        etcdctl(&[&ca, &shown[0], &shown[1], "put", "k", "v"], &secure)?;
        ensure!(etcdctl(&[&ca, "get", "k"], &secure)? == "k\nv\n");
        ensure!(etcdctl(&["get", "k"], &plain)? == "k\nv\n");
        let members = etcdctl(&[&ca, "member", "list"], &secure)?;
        ensure!(
            members.contains(&format!("https://127.0.0.1:{port}")),
            "{members}"
        );
        let members = etcdctl(&["member", "list"], &plain)?;
        ensure!(members.contains(&plain), "{members}");
        // Neither side believes a stranger.
        let foreign = stranger.shown("orders");
        for args in [
            vec![format!("--cacert={}", stranger.shown("ca"))],
            vec![
                ca.clone(),
                format!("--cert={foreign}"),
                format!("--key={foreign}"),
            ],
        ] {
            let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
            args.extend(["get", "k"]);
            let got = etcdctl(&args, &secure);
            ensure!(got.is_err(), "{args:?}: {got:?}");
        }

        let curl = |args: &[&str], url: &str| {
            let url = format!("{url}/v3/kv/range");
            let mut command = Command::new("curl");
            command
                .args(["--silent", "--show-error", "--fail", "--max-time", "10"])
                .args([
                    "--write-out",
                    " %{http_version}",
                    "--data",
                    "{\"key\":\"aw==\"}",
                ])
                .args(args)
                .arg(url);
            output(&mut command)
        };
        let ca = pki.shown("ca");
        for (args, url, version) in [
            (vec!["--cacert", &ca], &secure, "2"),
            (vec!["--cacert", &ca, "--http1.1"], &secure, "1.1"),
            (vec!["--cacert", &ca, "--no-alpn"], &secure, "1.1"),
            (vec!["--http1.1"], &plain, "1.1"),
            (vec!["--http2-prior-knowledge"], &plain, "2"),
        ] {
            let said = curl(&args, url)?;
            ensure!(
                said.contains("\"value\":\"dg==\"") && said.ends_with(&format!(" {version}")),
                "{args:?} {url}: {said}"
            );
        }

        a_name_in_a_certificate_is_a_user(&pki, port)?;

        // New files are taken up while the gateway runs.
        for name in ["server", "ca"] {
            fs::rename(stranger.file(name), pki.file(name))?;
        }
        let said = curl(&["--cacert", &pki.shown("ca")], &secure)?;
        ensure!(said.contains("\"value\":\"dg==\""), "{said}");
        Ok(())
    });
}

/// With users (etcd: auth/store.go, AuthInfoFromTLS; embed/serve.go, accessController): over gRPC the name stands for
/// its user without a password, over JSON it is refused, and a token counts before it.
fn a_name_in_a_certificate_is_a_user(pki: &Pki<'_>, port: u16) -> Result<()> {
    let (plain, secure) = (
        format!("http://127.0.0.1:{port}"),
        format!("https://localhost:{port}"),
    );
    let ca = pki.shown("ca");
    let etcdctl = |who: Option<&str>, args: &[&str]| {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args([
            "--dial-timeout=5s",
            "--command-timeout=5s",
            "--endpoints",
        ]);
        match who {
            Some(name) => {
                let file = pki.shown(name);
                command.args([&secure, "--cacert", &ca, "--cert", &file, "--key", &file])
            }
            None => command.arg(&plain),
        };
        output(command.args(args))
    };
    for args in [
        vec!["user", "add", "root:secret"],
        vec!["user", "grant-role", "root", "root"],
        vec!["user", "add", "orders+1", "--no-password"],
        vec!["role", "add", "k"],
        vec!["role", "grant-permission", "k", "read", "k"],
        vec!["user", "grant-role", "orders+1", "k"],
        vec!["auth", "enable"],
    ] {
        etcdctl(None, &args)?;
    }
    let refused = |who, args: &[&str], why: &str| {
        let got = etcdctl(who, args);
        let told = got.as_ref().is_err_and(|e| format!("{e:#}").contains(why));
        ensure!(told, "{who:?} {args:?}: {got:?}");
        Ok(())
    };
    ensure!(etcdctl(Some("orders"), &["get", "k"])? == "k\nv\n");
    refused(Some("orders"), &["put", "k", "x"], "permission denied")?;
    refused(Some("orders"), &["get", "other"], "permission denied")?;
    // No user has this name.
    refused(Some("billing"), &["get", "k"], "permission denied")?;
    refused(None, &["get", "k"], "user name is empty")?;
    let root = ["--user=root:secret", "put", "k", "v"];
    etcdctl(Some("orders"), &root)?;
    let mut json = Command::new("curl");
    let file = pki.shown("orders");
    json.args([
        "--silent",
        "--max-time",
        "10",
        "--write-out",
        "%{http_code}",
    ])
    .args(["--cacert", &ca, "--cert", &file, "--key", &file])
    .args(["--data", "{\"key\":\"aw==\"}"])
    .arg(format!("{secure}/v3/kv/range"));
    let said = output(&mut json)?;
    ensure!(
        said.starts_with("CommonName of client") && said.ends_with("400"),
        "{said}"
    );
    etcdctl(None, &["--user=root:secret", "auth", "disable"])?;
    ensure!(etcdctl(None, &["get", "k"])? == "k\nv\n");
    Ok(())
}
