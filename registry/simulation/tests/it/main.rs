//! Seeds, scenarios, and the proof that the checks find something.

mod bite;
mod seeds;
