//! The behaviour that every backend must have.
