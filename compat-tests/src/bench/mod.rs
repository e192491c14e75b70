//! The bench: scenarios, played by clients in their own languages, on every target.
//!
//! - [`scenario`] reads what is to be checked, a file each, from `compat-tests/scenarios`.
//! - [`client`] knows the client libraries; a file in [`families`] builds those of one language.
//! - [`run`] plays client × scenario × target and hands out faults.
//! - [`result`] keeps what came out; [`known`] says which failures are known; [`report`] writes
//!   `docs/compatibility.md`.

pub mod client;
pub mod families;
pub mod known;
pub mod report;
pub mod result;
pub mod run;
pub mod scenario;

pub use crate::protocol::Protocol;
pub use client::{Client, Family};
pub use scenario::Scenario;
