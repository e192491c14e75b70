//! Scenarios against real servers, real clients and the built binary.
#![allow(
    clippy::disallowed_methods,
    reason = "drives real processes in real time"
)]

mod config;
mod contention;
mod crash;
mod drop_in;
mod ensemble;
mod etcd_garbage;
mod etcd_streams;
mod frames;
mod garbage;
mod hostile;
mod lifecycle;
mod limits;
mod lone;
mod maintenance;
mod old_ensembles;
mod outage;
mod phases;
mod protection;
mod real;
mod record;
mod robustness;
mod rpc;
mod steps;
mod stubborn;
mod targets;
mod tls;
mod users;
mod words;
