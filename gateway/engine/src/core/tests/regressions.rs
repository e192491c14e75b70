//! A case for each thing that once went wrong.
