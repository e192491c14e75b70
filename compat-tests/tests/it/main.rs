//! Scenarios against real servers, real clients and the built binary.
#![allow(
    clippy::disallowed_methods,
    reason = "drives real processes in real time"
)]

mod config;
mod contention;
mod drop_in;
mod garbage;
mod lifecycle;
mod lone;
mod outage;
mod phases;
mod protection;
mod real;
mod record;
mod steps;
mod targets;
