//! Layers point down only: pure, store, what serves a processor, attempt, worker, processor.

use std::fs;
use std::path::Path;

const LAYERS: [&[&str]; 5] = [
    &["error", "job"],
    &["store"],
    &["slots", "liveness", "maintenance", "attempt", "client"],
    &["worker"],
    &["processor", "testing", "interleavings"],
];

/// What the root re-exports in lower case.
const FUNCTIONS: [&str; 3] = ["enqueue", "enqueue_many", "migrate"];

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

/// (file, module it uses) for every `crate::` path outside of comments.
fn uses(path: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(path).unwrap() {
        let entry = entry.unwrap().path();
        if entry.is_dir() {
            uses(&entry, found);
            continue;
        }
        for line in fs::read_to_string(&entry).unwrap().lines() {
            if line.trim_start().starts_with("//") {
                continue;
            }
            for (at, _) in line.match_indices("crate::") {
                let rest = &line[at + "crate::".len()..];
                let module: String =
                    rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
                found.push((entry.display().to_string(), module));
            }
        }
    }
}

#[test]
fn every_module_uses_only_its_own_layer_and_those_below() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    uses(&source, &mut found);
    assert!(found.len() > 50, "the test reads no imports any more");
    for (file, used) in found {
        let own = Path::new(&file).strip_prefix(&source).unwrap();
        let own = own.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
        // Re-exports of the root (crate::Client) begin with a capital letter and name no module.
        let (Some(from), Some(to)) = (layer(own), layer(&used)) else {
            let known = own == "lib" || used.is_empty() || FUNCTIONS.contains(&&*used);
            assert!(known, "{file} uses {used}: give both a layer in this test");
            continue;
        };
        assert!(to <= from, "{file} uses {used}, which is a layer above it");
    }
}
