//! Files of a folder.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The files of `folder` with this ending (without its dot), sorted.
///
/// # Errors
/// The folder cannot be read; the error names it.
pub fn files(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let named = || folder.display().to_string();
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(named)? {
        let path = entry.with_context(named)?.path();
        if path.extension().is_some_and(|own| own == ending) && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Their names without folder and ending.
///
/// # Errors
/// Like [`files`].
pub fn names(folder: &Path, ending: &str) -> Result<Vec<String>> {
    let stem = |path: &PathBuf| Some(path.file_stem()?.to_str()?.to_string());
    Ok(files(folder, ending)?.iter().filter_map(stem).collect())
}
