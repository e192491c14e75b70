//! The council on openraft's own suite, in one process with faults, and as real processes.

mod chaos;
mod disk;
mod history;
mod process;
mod scenarios;
mod storage;
mod world;
