//! What a scenario asks of the gateway, and the one place that knows how its configuration is spelt.

use std::fmt::Write as _;

/// The directory of the Curator layout in every scenario.
pub const CURATOR_BASE: &str = "/discovery";
/// The target of the grpc naming layout in every scenario.
pub const GRPC_TARGET: &str = "orders-grpc";
/// Where the bridge shows the Curator service `orders`.
pub const BRIDGED_TARGET: &str = "orders-bridged";
/// The key of the go-zero layout in every scenario.
pub const GO_ZERO_KEY: &str = "orders.rpc";

/// Settings of one gateway.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// `host:port` of the real ZooKeeper.
    pub legacy_zookeeper: Option<String>,
    /// URL of the real etcd.
    pub legacy_etcd: Option<String>,
    /// The phase of a fresh data folder.
    pub phase: Option<String>,
    /// Keeps nothing on disk.
    pub in_memory: bool,
    /// Short times for the protection rule, so that a scenario need not wait two minutes.
    pub quick_protection: bool,
    /// No instance is held back, nor a store that loses many: what an owner's silence does can be seen.
    pub no_protection: bool,
    /// Gate times of no length, so that a step waits for its measures and not for the calendar.
    pub quick_gates: bool,
    /// Projects the Curator service `orders` into the grpc naming layout.
    pub bridge: bool,
    /// Lines added to the configuration file as they are.
    pub extra: String,
}

impl Settings {
    /// The configuration file's text.
    pub fn toml(&self) -> String {
        let mut text = String::new();
        text.push_str(&self.extra);
        if self.quick_protection {
            // An instance counts for the expected size after this long, instead of after minutes.
            text.push_str(
                "\n[protection.rule]\nrise_ms = 4000\nsettle_ms = 1000\nexit_ms = 2000\n",
            );
        }
        if self.no_protection {
            // The whole of a service may go, and its last instance at once.
            text.push_str(
                "\n[protection]\nbrake_instances_percent = 100\nbrake_services_percent = 100\n\
                 [protection.rule]\nthreshold_percent = 100\nstrict = true\n",
            );
        }
        if self.quick_gates {
            text.push_str("\n[gates]\ntime_s = 0\n");
        }
        let _ = write!(
            text,
            "\n[[layout]]\nuse = \"curator\"\nroots = [\"{CURATOR_BASE}\"]\n\
             \n[[layout]]\nuse = \"grpc-endpoints\"\ntargets = [\"{GRPC_TARGET}\", \"{BRIDGED_TARGET}\"]\n\
             \n[[layout]]\nuse = \"go-zero\"\nservices = [\"{GO_ZERO_KEY}\"]\n"
        );
        if self.bridge {
            let _ = write!(
                text,
                "\n[[bridge]]\nfrom = \"curator\"\nservices = [\"orders\"]\nto = \"grpc-endpoints\"\nrename = {{ orders = \"{BRIDGED_TARGET}\" }}\n"
            );
        }
        text
    }
}

/// A Curator registration: path and value, as its JSON serializer writes them.
pub fn curator(service: &str, id: &str, address: &str, port: u16) -> (String, String) {
    (
        format!("{CURATOR_BASE}/{service}/{id}"),
        format!(
            "{{\"name\":\"{service}\",\"id\":\"{id}\",\"address\":\"{address}\",\"port\":{port},\"sslPort\":null,\
             \"payload\":null,\"registrationTimeUTC\":1754900000123,\"serviceType\":\"DYNAMIC\",\"uriSpec\":null}}"
        ),
    )
}

/// A go-zero registration: key and value. The last segment is the lease id in decimal.
pub fn go_zero(lease: i64, address: &str, port: u16) -> (String, String) {
    (
        format!("{GO_ZERO_KEY}/{lease}"),
        format!("{address}:{port}"),
    )
}

/// A grpc naming registration: key and value, as the endpoints manager writes them.
pub fn grpc(address: &str, port: u16) -> (String, String) {
    (
        format!("{GRPC_TARGET}/{address}:{port}"),
        format!("{{\"Op\":0,\"Addr\":\"{address}:{port}\",\"Metadata\":{{\"weight\":3}}}}"),
    )
}
