//! Applications as service frameworks make them: two providers and a consumer that find each other by a registry, on a real
//! server and on Causeway, through restarts and phase steps.
//!
//! - `course` is what happens to them, the same with every framework and on every target.
//! - `cast` are the processes of one framework, and what they say.
//! - [`log`] reads what they logged; what they log on Causeway and never on a real server is a fault. [`kept`] remembers what
//!   real servers made them log.
//!
//! To add a framework: an entry below, and its program in `compat-tests/clients/apps`, or `clients/go/apps` when it is in Go.
//! The program is called as `PROGRAM provider|consumer NAME ADDRESS PORT SESSION_MS` (a consumer's port is 0), ends on SIGTERM
//! with 143, logs on standard error as [`log`] reads it, and says on standard output, a line each:
//!
//! - `ready`: it is up, a provider is registered;
//! - `list HOW PORTS`: the framework gives this list of providers, by their ports with commas between, each time it is asked
//!   or told; a consumer that subscribes in several ways names each;
//! - `event HOW`: the framework reports a change of what it watches, apart from such a list;
//! - `call HOW NAME`: a call was answered by the provider NAME; `failed HOW REASON`: it was not;
//! - `wrote CALL`: a call that changes the registry was answered with success. Those of etcd's frameworks are counted.

mod cast;
mod course;
pub mod kept;
pub mod log;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::artefacts::{artefacts, go_applications};
use crate::protocol::Protocol;

pub use course::{Course, Heard, courses, run};

/// A service framework.
#[derive(Debug)]
pub struct Framework {
    /// Its name on the command line, and of its folder.
    pub name: &'static str,
    /// What it speaks to the registry.
    pub protocol: Protocol,
    /// How many lists of providers its consumer keeps.
    pub lists: usize,
    /// The ways in which its consumer calls.
    pub calls: &'static [&'static str],
    /// How those lists and calls start that a lost connection leaves as they are. The others go by Curator's service discovery,
    /// which deletes and creates its registrations at each reconnect, so that a provider may be missing for a moment.
    pub steady: Option<&'static str>,
    /// Whether its program says `wrote`.
    pub counted: bool,
    /// Whether a provider whose lease ran out while the registry was away is missing for a moment before it registers again, on a
    /// real server too: because it revokes that lease first, or waits until it finds itself missing.
    pub blinks: bool,
    /// What Causeway calls the providers' services, as `causeway services` shows them.
    pub services: &'static [&'static str],
    /// The program as it was built, and a folder that stands for the user's home.
    program: fn(&Path, &Path) -> Command,
}

/// All of them.
pub const FRAMEWORKS: &[Framework] = &[
    Framework {
        name: "dubbo",
        protocol: Protocol::ZooKeeper,
        // By application, and by interface once for each of two references.
        lists: 3,
        calls: &["application", "interface"],
        steady: Some("interface"),
        counted: false,
        blinks: false,
        services: &["dubbo/dubbo.Greeter", "services/dubbo-greeter"],
        program: |built, home| {
            let properties = [
                // There is no setting of Dubbo's for the session of its instances: it leaves it to Curator's default.
                format!("-Dcurator-default-session-timeout={SESSION_MS}"),
                // Providers stand in the registry with the address of this machine; without a network it is loopback.
                "-Ddubbo.network.interface.ignored=.*".to_string(),
            ];
            java(built, home, "dubbo", &properties, "dubbo.Main")
        },
    },
    Framework {
        name: "spring-cloud",
        protocol: Protocol::ZooKeeper,
        lists: 1,
        calls: &["balanced"],
        steady: None,
        counted: false,
        blinks: false,
        services: &["services/spring-greeter"],
        program: |built, home| java(built, home, "spring-cloud", &[], "spring.Main"),
    },
    Framework {
        name: "go-zero",
        calls: &["subscriber"],
        blinks: true,
        services: &["go-zero/orders.rpc"],
        program: |_, _| go("go-zero"),
        ..ETCD
    },
    Framework {
        name: "kratos",
        calls: &["discovery"],
        services: &["microservices/kratos-greeter"],
        program: |_, _| go("kratos"),
        ..ETCD
    },
    Framework {
        name: "kitex-etcd",
        calls: &["resolver"],
        blinks: true,
        services: &["kitex/registry-etcd/kitex-greeter"],
        program: |_, _| go("kitex-etcd"),
        ..ETCD
    },
    Framework {
        name: "grpc-naming",
        calls: &["resolver"],
        services: &["grpc-endpoints/orders-grpc"],
        program: |_, _| go("grpc-naming"),
        ..ETCD
    },
];

const ETCD: Framework = Framework {
    name: "",
    protocol: Protocol::Etcd,
    lists: 1,
    calls: &[],
    steady: Some(""),
    counted: true,
    blinks: false,
    services: &[],
    program: |_, _| unreachable!("a pattern for entries"),
};

/// The session timeout, or the time of the lease, that every application asks for. Longer than the server is away in a restart, which must cost nobody
/// its registration.
pub(crate) const SESSION_MS: u32 = 10_000;

/// The folder of the programs.
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/apps")
}

/// The folder of what is built of them.
pub fn built() -> PathBuf {
    artefacts().join("apps")
}

fn go(framework: &str) -> Command {
    let mut command = Command::new(go_applications());
    command
        .arg(framework)
        // grpc's own log of its calls, by which the program counts them.
        .env(
            "GRPC_BINARY_LOG_FILTER",
            "etcdserverpb.KV/*{h;m:0},etcdserverpb.Lease/*{h;m:0}",
        );
    command
}

fn java(built: &Path, home: &Path, module: &str, properties: &[String], class: &str) -> Command {
    let folder = built.join(module);
    let mut command = Command::new("java");
    command
        .args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m"])
        .arg(format!("-Duser.home={}", home.display()))
        .args(properties)
        .arg("-cp")
        .arg(format!("{0}/classes:{0}/lib/*", folder.display()))
        .arg(class);
    command
}
