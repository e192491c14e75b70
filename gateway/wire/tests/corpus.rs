//! The inputs that fuzzing kept, and some that are made here, hold what the fuzz targets check.

#[path = "../fuzz/properties.rs"]
mod properties;

use std::path::Path;

/// Fewest inputs of a target: a corpus that went missing proves nothing.
const FEWEST: usize = 10;

// One test for all of them: what an input allocates is counted over the process.
#[test]
fn kept_inputs_hold_their_properties() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    for (target, _) in properties::ALL {
        let folder = corpus.join(target);
        let mut count = 0;
        for entry in std::fs::read_dir(&folder).expect("a folder for each target") {
            let path = entry.expect("readable").path();
            let input = std::fs::read(&path).expect("readable");
            properties::bounded(target, &input);
            // What is cut off anywhere is an input too.
            for length in (0..input.len()).step_by(7) {
                properties::bounded(target, &input[..length]);
            }
            count += 1;
        }
        assert!(count >= FEWEST, "{}: {count} inputs", folder.display());
    }
}
