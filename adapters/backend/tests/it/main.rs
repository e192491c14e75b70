//! The in-memory reference against the contract, and the real servers that other tests lean on.

mod contract;
mod servers;
