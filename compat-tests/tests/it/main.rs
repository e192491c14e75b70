//! Scenarios against real servers, real clients and the built binary.
#![allow(
    clippy::disallowed_methods,
    reason = "drives real processes in real time"
)]

mod drop_in;
mod real;
