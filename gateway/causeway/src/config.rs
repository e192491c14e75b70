//! Configuration: command line over environment over file over defaults, checked as a whole before
//! anything starts. Every error is reported, not only the first.

mod tls;

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use causeway_engine::convert::{Bridge, BridgeConfig};
use causeway_engine::layout::{LayoutConfig, LayoutSet, PassConfig};
use causeway_engine::phase::Phase;
use causeway_engine::protection;
use causeway_registry::api::ClientSettings;
use causeway_registry_node::DnsConfig;
use causeway_wire::zk::FourLetterWord;
use serde::Deserialize;

pub use tls::{Ports, TlsSection};

/// Protocols above TLS on the etcd port: gRPC, and its JSON gateway for clients of either HTTP.
const ETCD_ALPN: &[&str] = &["h2", "http/1.1"];

/// Flags of `causeway serve` and `causeway check`. All of them are text here, so that every bad value
/// is reported with the others; each is also a `CAUSEWAY_…` variable and a key of the file.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Flags {
    /// Configuration file (TOML).
    #[arg(long, env = "CAUSEWAY_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address of the ZooKeeper port [default: 127.0.0.1:2181].
    #[arg(long, env = "CAUSEWAY_ZOOKEEPER_LISTEN", value_name = "ADDR")]
    pub zookeeper_listen: Option<String>,
    /// Address of the etcd port [default: 127.0.0.1:2379].
    #[arg(long, env = "CAUSEWAY_ETCD_LISTEN", value_name = "ADDR")]
    pub etcd_listen: Option<String>,
    /// Address of the admin API and the native HTTP API [default: 127.0.0.1:8500].
    #[arg(long, env = "CAUSEWAY_ADMIN_LISTEN", value_name = "ADDR")]
    pub admin_listen: Option<String>,
    /// Address of the native gRPC API [default: none; it is off].
    #[arg(long, env = "CAUSEWAY_NATIVE_GRPC_LISTEN", value_name = "ADDR")]
    pub native_grpc_listen: Option<String>,
    /// Address of the registry's DNS port, UDP and TCP [default: none; it is off].
    #[arg(long, env = "CAUSEWAY_DNS_LISTEN", value_name = "ADDR")]
    pub dns_listen: Option<String>,
    /// Legacy ZooKeeper ensemble: `HOST:PORT[,HOST:PORT…][/chroot]`.
    #[arg(long, env = "CAUSEWAY_LEGACY_ZOOKEEPER", value_name = "SERVERS")]
    pub legacy_zookeeper: Option<String>,
    /// Legacy etcd cluster: `URL[,URL…]`.
    #[arg(long, env = "CAUSEWAY_LEGACY_ETCD", value_name = "URLS")]
    pub legacy_etcd: Option<String>,
    /// Folder for what has to survive a restart; required with a legacy store.
    #[arg(long, env = "CAUSEWAY_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Phase of a fresh data folder [default: proxy].
    #[arg(long, env = "CAUSEWAY_PHASE", value_name = "PHASE")]
    pub phase: Option<String>,
    /// Share of a service's instances, in percent, above which removals stop [default: 40].
    #[arg(long, env = "CAUSEWAY_PROTECT_THRESHOLD", value_name = "PERCENT")]
    pub protect_threshold: Option<String>,
    /// HOST:PORT that `/zookeeper/config` shows [default: none; clients keep the address they have].
    #[arg(long, env = "CAUSEWAY_ADVERTISE_ZOOKEEPER", value_name = "ADDR")]
    pub advertise_zookeeper: Option<String>,
    /// URL that etcd clients are told [default: the address they connected to].
    #[arg(long, env = "CAUSEWAY_ADVERTISE_ETCD", value_name = "URL")]
    pub advertise_etcd: Option<String>,
    /// Token that the admin API asks for; required when it does not listen on loopback.
    #[arg(
        long,
        env = "CAUSEWAY_ADMIN_TOKEN",
        value_name = "TOKEN",
        hide_env_values = true
    )]
    pub admin_token: Option<String>,
    /// File that the bound addresses are written to as JSON, for ports given as 0.
    #[arg(long, env = "CAUSEWAY_PORTS_FILE", value_name = "FILE")]
    pub ports_file: Option<PathBuf>,
    /// Form of the log: text or json [default: text].
    #[arg(long, env = "CAUSEWAY_LOG_FORMAT", value_name = "FORM")]
    pub log_format: Option<String>,
    /// Address of a second ZooKeeper port, for TLS alone [default: none].
    #[arg(long, env = "CAUSEWAY_ZOOKEEPER_SECURE_LISTEN", value_name = "ADDR")]
    pub zookeeper_secure_listen: Option<String>,
    /// Certificate of the ZooKeeper port with its chain, in PEM; with it the port speaks TLS.
    #[arg(long, env = "CAUSEWAY_ZOOKEEPER_TLS_CERT", value_name = "FILE")]
    pub zookeeper_tls_cert: Option<PathBuf>,
    /// Its key [default: in the same file].
    #[arg(long, env = "CAUSEWAY_ZOOKEEPER_TLS_KEY", value_name = "FILE")]
    pub zookeeper_tls_key: Option<PathBuf>,
    /// CAs of the certificates that ZooKeeper clients show.
    #[arg(long, env = "CAUSEWAY_ZOOKEEPER_TLS_CLIENT_CA", value_name = "FILE")]
    pub zookeeper_tls_client_ca: Option<PathBuf>,
    /// Whether ZooKeeper clients show a certificate: none, want, need [default: need with a CA].
    #[arg(long, env = "CAUSEWAY_ZOOKEEPER_TLS_CLIENT_AUTH", value_name = "WHAT")]
    pub zookeeper_tls_client_auth: Option<String>,
    /// What the ZooKeeper port takes: plain, both, tls [default: tls; plain beside a secure port].
    #[arg(long, env = "CAUSEWAY_ZOOKEEPER_TLS_MODE", value_name = "MODE")]
    pub zookeeper_tls_mode: Option<String>,
    /// Certificate of the etcd port with its chain, in PEM; with it the port speaks TLS.
    #[arg(long, env = "CAUSEWAY_ETCD_TLS_CERT", value_name = "FILE")]
    pub etcd_tls_cert: Option<PathBuf>,
    /// Its key [default: in the same file].
    #[arg(long, env = "CAUSEWAY_ETCD_TLS_KEY", value_name = "FILE")]
    pub etcd_tls_key: Option<PathBuf>,
    /// CAs of the certificates that etcd clients show.
    #[arg(long, env = "CAUSEWAY_ETCD_TLS_CLIENT_CA", value_name = "FILE")]
    pub etcd_tls_client_ca: Option<PathBuf>,
    /// Whether etcd clients show a certificate: none, want, need [default: need with a CA].
    #[arg(long, env = "CAUSEWAY_ETCD_TLS_CLIENT_AUTH", value_name = "WHAT")]
    pub etcd_tls_client_auth: Option<String>,
    /// What the etcd port takes: plain, both, tls [default: tls].
    #[arg(long, env = "CAUSEWAY_ETCD_TLS_MODE", value_name = "MODE")]
    pub etcd_tls_mode: Option<String>,
}

/// The file, as written. Every flag is a key; sections hold what has no flag.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    zookeeper_listen: Option<String>,
    etcd_listen: Option<String>,
    admin_listen: Option<String>,
    native_grpc_listen: Option<String>,
    dns_listen: Option<String>,
    legacy_zookeeper: Option<String>,
    legacy_etcd: Option<String>,
    data_dir: Option<PathBuf>,
    phase: Option<String>,
    protect_threshold: Option<u64>,
    advertise_zookeeper: Option<String>,
    advertise_etcd: Option<String>,
    admin_token: Option<String>,
    ports_file: Option<PathBuf>,
    log_format: Option<String>,
    zookeeper_secure_listen: Option<String>,
    #[serde(default)]
    protection: protection::Settings,
    #[serde(default)]
    gates: GatesSection,
    #[serde(default)]
    zookeeper: ZookeeperSection,
    #[serde(default)]
    etcd: EtcdSection,
    #[serde(default)]
    native: NativeSection,
    #[serde(default)]
    dns: DnsSection,
    #[serde(default)]
    layout: Vec<LayoutConfig>,
    /// Built-in layouts in force; all of them when absent.
    layouts: Option<Vec<String>>,
    #[serde(default)]
    pass: Vec<PassConfig>,
    #[serde(default)]
    bridge: Vec<BridgeConfig>,
}

/// `[gates]`.
#[derive(Debug, Clone, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct GatesSection {
    /// How long everything has to be clean before a step forward, in seconds (default 600).
    pub time_s: Option<u64>,
    /// How long a registration may differ before it counts as a difference, in seconds (default 10).
    pub tolerated_difference_s: Option<u64>,
    /// How many client connections the take-over closes in a second (default 200).
    pub reconnects_per_s: Option<u64>,
}

/// `[zookeeper]`.
#[derive(Debug, Clone, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ZookeeperSection {
    /// ZooKeeper's tick, in milliseconds; session timeouts are 2 to 20 of them (default 2000).
    pub tick_ms: Option<u64>,
    /// Largest frame taken from a client, in bytes (default 1048575).
    pub max_frame: Option<u64>,
    /// Connections one address may have (default 0: no limit; ZooKeeper's own is 60).
    pub max_connections_per_address: Option<u64>,
    /// Connections the port may have (default 0: no limit, as ZooKeeper's `maxCnxns`).
    pub max_connections: Option<u64>,
    /// Requests of one connection that may wait for their answer before no more is read from it (default 4096).
    pub max_requests_per_connection: Option<u64>,
    /// Requests of all connections that may wait before each goes on with one at a time; 0 for no limit
    /// (default 1000, as ZooKeeper's `globalOutstandingLimit`).
    pub max_outstanding_requests: Option<u64>,
    /// Paths that one connection may watch before it is closed (default 1000000).
    pub max_watches_per_connection: Option<u64>,
    /// Shortest session timeout granted, in milliseconds (default 2 ticks).
    pub min_session_timeout_ms: Option<u64>,
    /// Longest session timeout granted, in milliseconds (default 20 ticks).
    pub max_session_timeout_ms: Option<u64>,
    /// Four-letter words that are answered, as ZooKeeper's `4lw.commands.whitelist`: a list with commas, or `*`
    /// for all (default: those that neither list what clients do nor change anything).
    pub four_letter_words: Option<String>,
    /// TLS.
    #[serde(default)]
    pub tls: TlsSection,
    /// Name in the certificate of those whom every ACL lets pass, as `whoAmI` shows it (ZooKeeper:
    /// `X509AuthenticationProvider.superUser`).
    pub x509_superuser: Option<String>,
}

/// `[etcd]`.
#[derive(Debug, Clone, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct EtcdSection {
    /// Smallest TTL granted to a lease, in seconds (default 2, as etcd with its default election timeout).
    pub min_lease_ttl_s: Option<u64>,
    /// Version shown by Status when there is no legacy etcd (default 3.7.3).
    pub version: Option<String>,
    /// TLS.
    #[serde(default)]
    pub tls: TlsSection,
}

/// `[native]`: what clients of the native API are asked for; changed live by `PUT /v1/registry/settings`.
#[derive(Debug, Clone, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct NativeSection {
    /// How often a client shows on its gRPC stream that it lives, in milliseconds (default 5000).
    pub heartbeat_interval_ms: Option<u32>,
    /// How many services a client keeps watching after their last use (default 128).
    pub cache_services: Option<u32>,
    /// How often a client fetches each watched service in full, in milliseconds (default 60000).
    pub refresh_interval_ms: Option<u32>,
}

/// `[dns]`.
#[derive(Debug, Clone, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct DnsSection {
    /// What all names end in (default `causeway.`).
    pub zone: Option<String>,
    /// How long resolvers may keep an answer, in seconds, 0 to 5 (default 1).
    pub ttl_s: Option<u32>,
}

/// A legacy ensemble.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZookeeperServers {
    /// `host:port` of each server.
    pub servers: Vec<String>,
    /// Path prefix on the ensemble, empty or beginning with a slash.
    pub chroot: String,
}

/// Configuration that passed the check.
#[derive(Debug, Clone)]
pub struct Config {
    /// ZooKeeper port.
    pub zookeeper_listen: SocketAddr,
    /// ZooKeeper port for TLS alone.
    pub zookeeper_secure_listen: Option<SocketAddr>,
    /// What the ZooKeeper ports take.
    pub zookeeper_tls: Ports,
    /// Name of those whom every ACL lets pass.
    pub x509_superuser: Option<String>,
    /// etcd port.
    pub etcd_listen: SocketAddr,
    /// What the etcd port takes.
    pub etcd_tls: Ports,
    /// Admin and native API port.
    pub admin_listen: SocketAddr,
    /// Native gRPC port.
    pub native_grpc_listen: Option<SocketAddr>,
    /// DNS port.
    pub dns_listen: Option<SocketAddr>,
    /// Its zone.
    pub dns: DnsConfig,
    /// What clients of the native API are asked for at first.
    pub native: ClientSettings,
    /// Legacy ensemble.
    pub legacy_zookeeper: Option<ZookeeperServers>,
    /// Legacy etcd endpoints (URLs).
    pub legacy_etcd: Option<Vec<String>>,
    /// Folder for durable state.
    pub data_dir: Option<PathBuf>,
    /// Phase of a fresh data folder.
    pub phase: Phase,
    /// Shown to ZooKeeper clients.
    pub advertise_zookeeper: Option<String>,
    /// Shown to etcd clients.
    pub advertise_etcd: Option<String>,
    /// Asked for by the admin API.
    pub admin_token: Option<String>,
    /// Where bound addresses are written.
    pub ports_file: Option<PathBuf>,
    /// Log as JSON lines.
    pub log_json: bool,
    /// The protection rule.
    pub protection: protection::Settings,
    /// Gate times.
    pub gate_time: Duration,
    /// Difference that counts.
    pub tolerated_difference: Duration,
    /// Pace of the take-over.
    pub reconnects_per_s: u32,
    /// ZooKeeper's tick.
    pub tick_ms: u32,
    /// Largest frame of a client.
    pub max_frame: usize,
    /// Connections per address; 0 for no limit.
    pub max_connections_per_address: usize,
    /// Connections of the ZooKeeper port; 0 for no limit.
    pub max_connections: usize,
    /// Requests of one connection without an answer.
    pub max_requests_per_connection: usize,
    /// Requests of all connections without an answer; 0 for no limit.
    pub max_outstanding_requests: usize,
    /// Paths that one connection may watch.
    pub max_watches_per_connection: usize,
    /// Session timeouts that are granted, in milliseconds.
    pub session_timeout_ms: RangeInclusive<u32>,
    /// Four-letter words that are answered.
    pub four_letter_words: Vec<FourLetterWord>,
    /// Smallest lease TTL in seconds.
    pub min_lease_ttl_s: i64,
    /// Version shown without a legacy etcd.
    pub etcd_version: String,
    /// Layouts in force.
    pub layouts: LayoutSet,
    /// Bridges.
    pub bridges: Vec<Bridge>,
}

/// All that is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} error(s) in the configuration:\n{}", .0.len(), .0.iter().map(|e| format!("  - {e}")).collect::<Vec<_>>().join("\n"))]
pub struct ConfigErrors(pub Vec<String>);

impl Config {
    /// Reads the file if one is named, lays environment and flags over it, and checks the whole.
    pub fn load(flags: &Flags) -> Result<Config, ConfigErrors> {
        let file = match &flags.config {
            None => File::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|e| ConfigErrors(vec![format!("--config {}: {e}", path.display())]))?;
                toml::from_str(&text).map_err(|e| {
                    ConfigErrors(vec![format!(
                        "{}: {}",
                        path.display(),
                        e.to_string().trim_end()
                    )])
                })?
            }
        };
        Self::check(flags, file)
    }

    fn check(flags: &Flags, file: File) -> Result<Config, ConfigErrors> {
        let mut errors = Vec::new();
        let mut listen =
            |name: &str, flag: &Option<String>, file: &Option<String>, default: &str| {
                let text = flag
                    .as_ref()
                    .or(file.as_ref())
                    .map_or(default, String::as_str);
                text.parse::<SocketAddr>().unwrap_or_else(|_| {
                    errors.push(format!(
                        "{name}: {text:?} is not ADDRESS:PORT, such as {default}"
                    ));
                    SocketAddr::from(([127, 0, 0, 1], 0))
                })
            };
        let zookeeper_listen = listen(
            "zookeeper-listen",
            &flags.zookeeper_listen,
            &file.zookeeper_listen,
            "127.0.0.1:2181",
        );
        let etcd_listen = listen(
            "etcd-listen",
            &flags.etcd_listen,
            &file.etcd_listen,
            "127.0.0.1:2379",
        );
        let admin_listen = listen(
            "admin-listen",
            &flags.admin_listen,
            &file.admin_listen,
            "127.0.0.1:8500",
        );
        let zookeeper_secure_listen = flags
            .zookeeper_secure_listen
            .as_ref()
            .or(file.zookeeper_secure_listen.as_ref())
            .map(|_| {
                listen(
                    "zookeeper-secure-listen",
                    &flags.zookeeper_secure_listen,
                    &file.zookeeper_secure_listen,
                    "127.0.0.1:2281",
                )
            });
        let native_grpc_listen = flags
            .native_grpc_listen
            .as_ref()
            .or(file.native_grpc_listen.as_ref())
            .map(|_| {
                listen(
                    "native-grpc-listen",
                    &flags.native_grpc_listen,
                    &file.native_grpc_listen,
                    "127.0.0.1:8501",
                )
            });
        let dns_listen = flags
            .dns_listen
            .as_ref()
            .or(file.dns_listen.as_ref())
            .map(|_| {
                listen(
                    "dns-listen",
                    &flags.dns_listen,
                    &file.dns_listen,
                    "127.0.0.1:8600",
                )
            });
        let mut listeners = vec![
            ("zookeeper", zookeeper_listen),
            ("etcd", etcd_listen),
            ("admin", admin_listen),
        ];
        listeners.extend(zookeeper_secure_listen.map(|at| ("zookeeper-secure", at)));
        listeners.extend(native_grpc_listen.map(|at| ("native-grpc", at)));
        listeners.extend(dns_listen.map(|at| ("dns", at)));
        for (i, (a, at)) in listeners.iter().enumerate() {
            for (b, other) in &listeners[i + 1..] {
                if at == other && at.port() != 0 {
                    errors.push(format!(
                        "{a}-listen and {b}-listen are both {at}: give each its own port"
                    ));
                }
            }
        }

        let named = |flag: &Option<String>, file: &Option<String>| flag.is_some() || file.is_some();
        let has_legacy = named(&flags.legacy_zookeeper, &file.legacy_zookeeper)
            || named(&flags.legacy_etcd, &file.legacy_etcd);
        let legacy_zookeeper = flags
            .legacy_zookeeper
            .clone()
            .or(file.legacy_zookeeper)
            .and_then(|text| {
                zookeeper_servers(&text)
                    .map_err(|e| errors.push(format!("legacy-zookeeper: {e}")))
                    .ok()
            });
        let legacy_etcd = flags
            .legacy_etcd
            .clone()
            .or(file.legacy_etcd)
            .and_then(|text| {
                etcd_urls(&text)
                    .map_err(|e| errors.push(format!("legacy-etcd: {e}")))
                    .ok()
            });
        let own_server = zookeeper_listen.to_string();
        if legacy_zookeeper
            .iter()
            .any(|l| l.servers.contains(&own_server))
        {
            errors.push(format!(
                "legacy-zookeeper: {own_server} is the gateway's own port"
            ));
        }
        let own_url = format!("//{etcd_listen}");
        if legacy_etcd.iter().flatten().any(|u| u.ends_with(&own_url)) {
            errors.push(format!(
                "legacy-etcd: {etcd_listen} is the gateway's own port"
            ));
        }

        let data_dir = flags.data_dir.clone().or(file.data_dir);
        if has_legacy && data_dir.is_none() {
            errors.push(
                "data-dir: required with a legacy store (sessions, phase and protection must survive a restart)".into(),
            );
        }
        let phase = match flags.phase.clone().or(file.phase) {
            None => Phase::Proxy,
            Some(text) => text
                .parse()
                .unwrap_or_else(|e: causeway_engine::phase::UnknownPhase| {
                    errors.push(format!("phase: {e}"));
                    Phase::Proxy
                }),
        };
        if phase.needs_take_over() && !has_legacy {
            errors.push(format!(
                "phase: {phase} needs a legacy store (--legacy-zookeeper or --legacy-etcd)"
            ));
        }
        let mut protection = file.protection;
        let threshold = match (&flags.protect_threshold, file.protect_threshold) {
            (Some(text), _) => text.parse::<u64>().ok(),
            (None, Some(n)) => Some(n),
            (None, None) => Some(protection.rule.threshold_percent),
        };
        match threshold.filter(|n| (1..=100).contains(n)) {
            Some(percent) => protection.rule.threshold_percent = percent,
            None => errors
                .push("protect-threshold: a whole number of percent from 1 to 100 is asked".into()),
        }
        errors.extend(
            protection
                .check()
                .into_iter()
                .map(|e| format!("protection: {e}")),
        );
        let log_json = match flags.log_format.clone().or(file.log_format).as_deref() {
            None | Some("text") => false,
            Some("json") => true,
            Some(other) => {
                errors.push(format!("log-format: {other:?} is neither text nor json"));
                false
            }
        };
        let admin_token = flags
            .admin_token
            .clone()
            .or(file.admin_token)
            .filter(|t| !t.is_empty());
        if !admin_listen.ip().is_loopback() && admin_token.is_none() {
            errors.push(format!(
                "admin-token: required because admin-listen {admin_listen} is not on loopback"
            ));
        }
        let advertise_etcd = flags.advertise_etcd.clone().or(file.advertise_etcd);
        if let Some(Err(e)) = advertise_etcd.as_deref().map(etcd_urls) {
            errors.push(format!("advertise-etcd: {e}"));
        }
        let advertise_zookeeper = flags
            .advertise_zookeeper
            .clone()
            .or(file.advertise_zookeeper);
        if let Some(addr) = &advertise_zookeeper {
            match zookeeper_servers(addr) {
                Err(e) => errors.push(format!("advertise-zookeeper: {e}")),
                Ok(given) if given.servers.len() > 1 || !given.chroot.is_empty() => {
                    errors.push(
                        "advertise-zookeeper: one HOST:PORT is asked, this gateway's own".into(),
                    );
                }
                Ok(_) => {}
            }
        }

        let zookeeper_tls = file
            .zookeeper
            .tls
            .under(TlsSection {
                cert: flags.zookeeper_tls_cert.clone(),
                key: flags.zookeeper_tls_key.clone(),
                client_ca: flags.zookeeper_tls_client_ca.clone(),
                client_auth: flags.zookeeper_tls_client_auth.clone(),
                mode: flags.zookeeper_tls_mode.clone(),
            })
            .load(
                "zookeeper",
                zookeeper_secure_listen.is_some(),
                &[],
                &mut errors,
            );
        let etcd_tls = file
            .etcd
            .tls
            .under(TlsSection {
                cert: flags.etcd_tls_cert.clone(),
                key: flags.etcd_tls_key.clone(),
                client_ca: flags.etcd_tls_client_ca.clone(),
                client_auth: flags.etcd_tls_client_auth.clone(),
                mode: flags.etcd_tls_mode.clone(),
            })
            .load("etcd", false, ETCD_ALPN, &mut errors);

        let tick_ms = bounded(
            file.zookeeper.tick_ms,
            2000,
            1..=60_000,
            "zookeeper.tick_ms",
            &mut errors,
        );
        let max_frame = bounded(
            file.zookeeper.max_frame,
            0xf_ffff,
            1024..=64 << 20,
            "zookeeper.max_frame",
            &mut errors,
        );
        let per_address = bounded(
            file.zookeeper.max_connections_per_address,
            0,
            0..=1_000_000,
            "zookeeper.max_connections_per_address",
            &mut errors,
        );
        let connections = bounded(
            file.zookeeper.max_connections,
            0,
            0..=10_000_000,
            "zookeeper.max_connections",
            &mut errors,
        );
        let requests = bounded(
            file.zookeeper.max_requests_per_connection,
            4096,
            1..=1_000_000,
            "zookeeper.max_requests_per_connection",
            &mut errors,
        );
        let outstanding = bounded(
            file.zookeeper.max_outstanding_requests,
            1000,
            0..=100_000_000,
            "zookeeper.max_outstanding_requests",
            &mut errors,
        );
        let watches = bounded(
            file.zookeeper.max_watches_per_connection,
            1_000_000,
            1..=100_000_000,
            "zookeeper.max_watches_per_connection",
            &mut errors,
        );
        let shortest = bounded(
            file.zookeeper.min_session_timeout_ms,
            tick_ms * 2,
            1..=86_400_000,
            "zookeeper.min_session_timeout_ms",
            &mut errors,
        );
        let longest = bounded(
            file.zookeeper.max_session_timeout_ms,
            tick_ms * 20,
            1..=86_400_000,
            "zookeeper.max_session_timeout_ms",
            &mut errors,
        );
        if shortest > longest {
            errors.push(format!(
                "zookeeper.min_session_timeout_ms: {shortest} is above zookeeper.max_session_timeout_ms, {longest}"
            ));
        }
        let four_letter_words = match &file.zookeeper.four_letter_words {
            None => ALWAYS_ANSWERED.to_vec(),
            Some(text) => four_letter_words(text).unwrap_or_else(|e| {
                errors.push(format!("zookeeper.four_letter_words: {e}"));
                Vec::new()
            }),
        };
        let min_ttl = bounded(
            file.etcd.min_lease_ttl_s,
            2,
            1..=3600,
            "etcd.min_lease_ttl_s",
            &mut errors,
        );
        let gate_s = bounded(
            file.gates.time_s,
            600,
            0..=31_536_000,
            "gates.time_s",
            &mut errors,
        );
        let tolerated = bounded(
            file.gates.tolerated_difference_s,
            10,
            0..=3600,
            "gates.tolerated_difference_s",
            &mut errors,
        );
        let pace = bounded(
            file.gates.reconnects_per_s,
            200,
            1..=100_000,
            "gates.reconnects_per_s",
            &mut errors,
        );

        let usual = ClientSettings::default();
        let asked = &file.native;
        let native = ClientSettings {
            heartbeat_interval_ms: asked
                .heartbeat_interval_ms
                .unwrap_or(usual.heartbeat_interval_ms),
            cache_services: asked.cache_services.unwrap_or(usual.cache_services),
            refresh_interval_ms: asked
                .refresh_interval_ms
                .unwrap_or(usual.refresh_interval_ms),
        };
        errors.extend(
            native
                .faults()
                .iter()
                .map(|fault| format!("native.{fault}")),
        );
        let usual = DnsConfig::default();
        let dns = DnsConfig {
            zone: file.dns.zone.unwrap_or(usual.zone),
            ttl_s: file.dns.ttl_s.unwrap_or(usual.ttl_s),
        };
        errors.extend(dns.fault().map(|fault| format!("dns.{fault}")));

        let layouts = LayoutSet::load(&file.layout, &file.pass, file.layouts.as_deref())
            .unwrap_or_else(|all| {
                errors.extend(all.iter().map(ToString::to_string));
                LayoutSet::builtin_default()
            });
        let bridges = Bridge::load(&file.bridge, &layouts).unwrap_or_else(|all| {
            errors.extend(all.iter().map(ToString::to_string));
            Vec::new()
        });

        if !errors.is_empty() {
            return Err(ConfigErrors(errors));
        }
        Ok(Config {
            zookeeper_listen,
            zookeeper_secure_listen,
            zookeeper_tls,
            x509_superuser: file.zookeeper.x509_superuser,
            etcd_listen,
            etcd_tls,
            admin_listen,
            native_grpc_listen,
            native,
            dns_listen,
            dns,
            legacy_zookeeper,
            legacy_etcd,
            data_dir,
            phase,
            advertise_zookeeper,
            advertise_etcd,
            admin_token,
            ports_file: flags.ports_file.clone().or(file.ports_file),
            log_json,
            protection,
            gate_time: Duration::from_secs(gate_s),
            tolerated_difference: Duration::from_secs(tolerated),
            reconnects_per_s: u32::try_from(pace).unwrap_or(200),
            tick_ms: u32::try_from(tick_ms).unwrap_or(2000),
            max_frame: usize::try_from(max_frame).unwrap_or(0xf_ffff),
            max_connections_per_address: usize::try_from(per_address).unwrap_or(0),
            max_connections: usize::try_from(connections).unwrap_or(0),
            max_requests_per_connection: usize::try_from(requests).unwrap_or(4096),
            max_outstanding_requests: usize::try_from(outstanding).unwrap_or(0),
            max_watches_per_connection: usize::try_from(watches).unwrap_or(1_000_000),
            session_timeout_ms: u32::try_from(shortest).unwrap_or(4000)
                ..=u32::try_from(longest).unwrap_or(40_000),
            four_letter_words,
            min_lease_ttl_s: i64::try_from(min_ttl).unwrap_or(2),
            etcd_version: file.etcd.version.unwrap_or_else(|| "3.7.3".into()),
            layouts,
            bridges,
        })
    }
}

fn bounded(
    value: Option<u64>,
    default: u64,
    range: std::ops::RangeInclusive<u64>,
    name: &str,
    errors: &mut Vec<String>,
) -> u64 {
    let value = value.unwrap_or(default);
    if range.contains(&value) {
        return value;
    }
    errors.push(format!(
        "{name}: {value} is not within {} to {}",
        range.start(),
        range.end()
    ));
    default
}

/// Four-letter words that are answered when nobody chose: all that only tell figures. A dashboard or a client
/// library that asked the ensemble for them finds them here as well, with nothing but the address changed.
/// Those that list what every client holds, or that change something, have to be asked for.
const ALWAYS_ANSWERED: &[FourLetterWord] = &[
    FourLetterWord::Conf,
    FourLetterWord::Cons,
    FourLetterWord::Dirs,
    FourLetterWord::Envi,
    FourLetterWord::Gtmk,
    FourLetterWord::Hash,
    FourLetterWord::Isro,
    FourLetterWord::Mntr,
    FourLetterWord::Ruok,
    FourLetterWord::Srvr,
    FourLetterWord::Stat,
    FourLetterWord::Wchs,
];

/// ZooKeeper: `FourLetterCommands.isEnabled`; `srvr` is answered in any case, since scripts depend on it.
fn four_letter_words(text: &str) -> Result<Vec<FourLetterWord>, String> {
    let mut words = vec![FourLetterWord::Srvr];
    for name in text.split(',').map(str::trim).filter(|n| !n.is_empty()) {
        if name == "*" {
            return Ok(FourLetterWord::ALL.to_vec());
        }
        let known = FourLetterWord::ALL.iter().find(|w| w.as_str() == name);
        words.push(*known.ok_or_else(|| format!("{name:?} is no four-letter word"))?);
    }
    Ok(words)
}

fn zookeeper_servers(text: &str) -> Result<ZookeeperServers, String> {
    let (hosts, chroot) = match text.find('/') {
        Some(at) => (&text[..at], text[at..].trim_end_matches('/')),
        None => (text, ""),
    };
    let servers: Vec<String> = hosts.split(',').map(|s| s.trim().to_owned()).collect();
    for server in &servers {
        let port = server
            .rsplit_once(':')
            .filter(|(host, _)| !host.is_empty())
            .map(|(_, port)| port.parse::<u16>());
        if !matches!(port, Some(Ok(1..))) {
            return Err(format!(
                "{server:?} is not HOST:PORT (expected HOST:PORT[,HOST:PORT…][/chroot])"
            ));
        }
    }
    Ok(ZookeeperServers {
        servers,
        chroot: chroot.to_owned(),
    })
}

fn etcd_urls(text: &str) -> Result<Vec<String>, String> {
    let urls: Vec<String> = text
        .split(',')
        .map(|s| s.trim().trim_end_matches('/').to_owned())
        .collect();
    for url in &urls {
        let rest = url
            .strip_prefix("http://")
            .or_else(|| url.strip_prefix("https://"));
        let port = rest
            .and_then(|r| r.rsplit_once(':'))
            .filter(|(h, _)| !h.is_empty())
            .map(|(_, p)| p.parse::<u16>());
        if !matches!(port, Some(Ok(1..))) {
            return Err(format!("{url:?} is not a URL such as http://10.0.0.1:2379"));
        }
    }
    Ok(urls)
}

/// The configuration of a gateway without flags and file.
#[cfg(test)]
pub fn defaults() -> Config {
    let file = toml::from_str("").expect("nothing is a file");
    Config::check(&Flags::default(), file).expect("defaults are valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(toml: &str, change: impl FnOnce(&mut Flags)) -> Result<Config, ConfigErrors> {
        let mut flags = Flags::default();
        change(&mut flags);
        Config::check(
            &flags,
            toml::from_str(toml).expect("the test's own TOML parses"),
        )
    }

    #[test]
    fn defaults_are_a_lone_gateway_on_loopback() {
        let config = load("", |_| {}).expect("valid");
        assert_eq!(config.zookeeper_listen.to_string(), "127.0.0.1:2181");
        assert_eq!(config.etcd_listen.to_string(), "127.0.0.1:2379");
        assert_eq!(config.admin_listen.to_string(), "127.0.0.1:8500");
        assert_eq!(
            (
                config.phase,
                config.protection.rule.threshold_percent,
                config.tick_ms
            ),
            (Phase::Proxy, 40, 2000)
        );
    }

    #[test]
    fn flags_win_over_the_file() {
        let config = load("etcd_listen = '127.0.0.1:1'\nprotect_threshold = 50", |f| {
            f.etcd_listen = Some("127.0.0.1:2".into());
        })
        .expect("valid");
        assert_eq!(
            (
                config.etcd_listen.port(),
                config.protection.rule.threshold_percent
            ),
            (2, 50)
        );
    }

    #[test]
    fn every_error_is_named_at_once() {
        let errors = load(
            "protect_threshold = 0\nphase = 'prxy'\nlegacy_etcd = 'localhost'\n",
            |f| {
                f.zookeeper_listen = Some("nonsense".into());
                f.etcd_listen = Some("127.0.0.1:8500".into());
                f.legacy_zookeeper = Some("a:1,b".into());
                f.log_format = Some("xml".into());
                f.admin_token = None;
            },
        )
        .expect_err("bad");
        for needle in [
            "protect-threshold",
            "prxy",
            "localhost",
            "nonsense",
            "\"b\"",
            "xml",
            "both 127.0.0.1:8500",
        ] {
            assert!(
                errors.to_string().contains(needle),
                "{needle} is missing from: {errors}"
            );
        }
    }

    #[test]
    fn a_legacy_store_asks_for_a_data_folder_and_a_late_phase_for_a_legacy_store() {
        let errors = load("", |f| f.legacy_etcd = Some("http://h:2379".into())).expect_err("bad");
        assert!(errors.to_string().contains("data-dir"), "{errors}");
        let errors = load("", |f| f.phase = Some("merge-new".into())).expect_err("bad");
        assert!(
            errors.to_string().contains("needs a legacy store"),
            "{errors}"
        );
    }

    #[test]
    fn four_letter_words_are_listed_as_in_zookeeper() {
        let words = |toml: &str| load(toml, |_| {}).map(|c| c.four_letter_words);
        let check = |setting: &str, want: &[&str]| {
            let toml = format!("[zookeeper]\nfour_letter_words = '{setting}'");
            let got = words(&toml).expect("valid");
            let got: Vec<&str> = got.iter().map(|w| w.as_str()).collect();
            assert_eq!(got, want, "{setting}");
        };
        check("", &["srvr"]);
        check("stat, ruok,", &["srvr", "stat", "ruok"]);
        let all: Vec<&str> = FourLetterWord::ALL.iter().map(|w| w.as_str()).collect();
        check("mntr,*", &all);
        let default = words("").expect("valid");
        assert!(default.contains(&FourLetterWord::Mntr));
        assert!(!default.contains(&FourLetterWord::Wchc));
        let errors = words("[zookeeper]\nfour_letter_words = 'stat,kill'").expect_err("bad");
        assert!(errors.to_string().contains("\"kill\""), "{errors}");
    }

    #[test]
    fn session_timeouts_are_ticks_unless_given() {
        let range = |toml: &str| load(toml, |_| {}).map(|c| c.session_timeout_ms);
        assert_eq!(range("").expect("valid"), 4000..=40_000);
        let slow = "[zookeeper]\ntick_ms = 3000\nmin_session_timeout_ms = 1000";
        assert_eq!(range(slow).expect("valid"), 1000..=60_000);
        let crossed = "[zookeeper]\nmin_session_timeout_ms = 50000";
        let errors = range(crossed).expect_err("bad");
        assert!(errors.to_string().contains("is above"), "{errors}");
    }

    #[test]
    fn legacy_addresses() {
        let ok = zookeeper_servers("a:1, b:2/app/x/").expect("valid");
        assert_eq!(
            (ok.servers, ok.chroot.as_str()),
            (vec!["a:1".to_owned(), "b:2".into()], "/app/x")
        );
        for bad in ["", "a", "a:0", ":1", "a:b", "a:1,"] {
            assert!(zookeeper_servers(bad).is_err(), "{bad}");
        }
        assert_eq!(
            etcd_urls("http://a:1/,https://b:2").expect("valid"),
            ["http://a:1", "https://b:2"]
        );
        for bad in ["", "a:1", "ftp://a:1", "http://a", "http://:1"] {
            assert!(etcd_urls(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn native_ports_are_off_unless_asked_for() {
        let config = load("", |_| {}).expect("valid");
        assert_eq!((config.native_grpc_listen, config.dns_listen), (None, None));
        assert_eq!(config.native, ClientSettings::default());
        let asked = "native_grpc_listen = '127.0.0.1:1'\n[native]\ncache_services = 7";
        let config = load(asked, |_| {}).expect("valid");
        assert_eq!(config.native_grpc_listen.map(|at| at.port()), Some(1));
        assert_eq!(config.native.cache_services, 7);
        let wrong = "native_grpc_listen = 'x'\ndns_listen = '127.0.0.1:8500'\n\
            [native]\nheartbeat_interval_ms = 1\n[dns]\nttl_s = 6";
        let errors = load(wrong, |_| {}).expect_err("bad").to_string();
        assert!(errors.contains("native-grpc-listen"), "{errors}");
        assert!(errors.contains("native.heartbeat_interval_ms"), "{errors}");
        assert!(errors.contains("admin-listen and dns-listen"), "{errors}");
        assert!(errors.contains("dns.ttl"), "{errors}");
    }

    #[test]
    fn an_open_admin_port_asks_for_a_token() {
        let open = |f: &mut Flags| f.admin_listen = Some("0.0.0.0:8500".into());
        assert!(
            load("", open)
                .expect_err("bad")
                .to_string()
                .contains("admin-token")
        );
        assert!(load("admin_token = 'secret'", open).is_ok());
    }
}
