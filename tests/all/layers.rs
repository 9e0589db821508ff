//! The folders of `src/` point in one direction, and in no crate two files need each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each folder, or file of the root, may use those before it. A new file needs no line here. The
/// public modules behind `processor` only pass names on.
const DIRECTION: [&str; 21] = [
    "job",
    "error",
    "metrics",
    "store",
    "primary",
    "slots",
    "liveness",
    "maintenance",
    "attempt",
    "worker",
    "client",
    "processor",
    "admin",
    "explain",
    "layer",
    "observe",
    "receive",
    "rehearsal",
    "shards",
    "testing",
    "interleavings",
];

type Module = Vec<String>;

/// A path as it is written behind `use`, and the name that it gets there.
struct Import {
    path: Module,
    name: String,
}

struct Source {
    file: PathBuf,
    /// Paths that its code uses, as they are written.
    used: Vec<Module>,
    /// Names that it only passes on (`pub use`).
    passed_on: BTreeMap<String, Module>,
}

fn split(path: &str) -> Module {
    path.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// The code without comments, texts and its unit tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap();
    let mut code = String::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
        let line = line.split(" // ").next().unwrap().replace("\\\"", "");
        code.extend(line.split('"').step_by(2));
        code.push('\n');
    }
    code
}

/// Takes a tree of imports apart: `a::{b, c::{d, e as f}}`.
fn imports(tree: &str) -> Vec<Import> {
    let tree = tree.trim();
    if let Some((before, rest)) = tree.split_once('{') {
        let (mut depth, mut from, mut parts) = (0, 0, Vec::new());
        for (at, c) in rest.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' | '}' if depth == 0 => {
                    parts.push(&rest[from..at]);
                    from = at + 1;
                }
                _ => {}
            }
        }
        let parts = parts.into_iter().filter(|part| !part.trim().is_empty());
        return parts
            .flat_map(imports)
            .map(|Import { path, name }| {
                let path: Module = split(before).into_iter().chain(path).collect();
                let name = if name.is_empty() { path.last().cloned() } else { Some(name) };
                Import { path, name: name.unwrap_or_default() }
            })
            .collect();
    }
    let (path, name) = tree.split_once(" as ").unwrap_or((tree, ""));
    let mut path = split(path);
    if path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    let name = if name.is_empty() {
        path.last().cloned().unwrap_or_default()
    } else {
        name.trim().to_owned()
    };
    vec![Import { path, name }]
}

/// From the root of the crate: `crate::`, `super::`, `self::`, or a module that `known` has below
/// `own`.
fn absolute(path: &[String], own: &[String], known: &BTreeSet<Module>) -> Option<Module> {
    let (first, rest) = path.split_first()?;
    match first.as_str() {
        "crate" => Some(rest.to_vec()),
        "self" => Some([own, rest].concat()),
        "super" => {
            let mut own = own[..own.len().checked_sub(1)?].to_vec();
            let mut rest = rest;
            while rest.first().is_some_and(|part| part == "super") {
                own.pop()?;
                rest = &rest[1..];
            }
            Some([&own, rest].concat())
        }
        _ => {
            let module = [own, &path[..1]].concat();
            known.contains(&module).then(|| [own, path].concat())
        }
    }
}

/// Finds the files below a folder that have one of these extensions.
pub fn files(folder: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, extensions, found);
        } else if path.extension().is_some_and(|its| extensions.iter().any(|one| its == *one)) {
            found.push(path);
        }
    }
}

/// `src/store/claim/mod.rs` is `store::claim`.
fn module(file: &Path) -> Module {
    let mut parts: Module =
        file.with_extension("").iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    if parts.last().is_some_and(|last| ["mod", "lib", "main"].contains(&&**last)) {
        parts.pop();
    }
    parts
}

fn read(root: &Path) -> BTreeMap<Module, Source> {
    let mut paths = Vec::new();
    files(root, &["rs"], &mut paths);
    let file = |path: &PathBuf| path.strip_prefix(root).unwrap().to_owned();
    let known: BTreeSet<Module> = paths.iter().map(|path| module(&file(path))).collect();
    let mut sources = BTreeMap::new();
    for path in paths {
        let file = file(&path);
        let own = module(&file);
        let code = code(&fs::read_to_string(&path).unwrap());
        let (mut used, mut passed_on, mut aliases) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let mut body = String::new();
        for (nth, part) in format!("\n{code}").split("use ").enumerate() {
            if nth == 0 {
                body.push_str(part);
                continue;
            }
            let (tree, rest) = part.split_once(';').unwrap_or((part, ""));
            let public =
                body.lines().last().is_some_and(|line| line.trim_start().starts_with("pub"));
            for Import { path, name } in imports(tree) {
                let Some(path) = absolute(&path, &own, &known) else { continue };
                if public {
                    passed_on.insert(name, path);
                } else if known.contains(&path) {
                    aliases.insert(name, path);
                } else {
                    used.push(path);
                }
            }
            body.push_str(rest);
        }
        let word = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        for path in body.split(|c| !word(c)).filter(|path| path.contains("::")) {
            let path = split(path);
            let below = aliases.get(path.first().unwrap_or(&String::new()));
            let path = match below {
                Some(module) => Some([module, &path[1..]].concat()),
                None => absolute(&path, &own, &known),
            };
            used.extend(path);
        }
        sources.insert(own, Source { file, used, passed_on });
    }
    sources
}

/// The file that defines what a path names, behind all that only pass it on. The path of a folder
/// alone, as in `pub(in crate::store)`, names nothing.
fn defined_in<'a>(path: &[String], sources: &'a BTreeMap<Module, Source>) -> Option<&'a Source> {
    let length = (0..=path.len()).rev().find(|length| sources.contains_key(&path[..*length]))?;
    let (source, rest) = (&sources[&path[..length]], &path[length..]);
    match rest.split_first() {
        Some((name, rest)) if source.passed_on.contains_key(name) => {
            defined_in(&[&source.passed_on[name], rest].concat(), sources)
        }
        None if source.file.ends_with("mod.rs") => None,
        _ => Some(source),
    }
}

/// Which file uses which.
fn uses(sources: &BTreeMap<Module, Source>) -> BTreeMap<&Path, BTreeSet<&Path>> {
    let mut uses: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
    for source in sources.values() {
        let others = source.used.iter().filter_map(|path| defined_in(path, sources));
        let others = others.map(|other| &*other.file).filter(|file| *file != source.file);
        uses.insert(&source.file, others.filter(|file| !is_root(file)).collect());
    }
    uses
}

/// Returns whether a file declares the modules of its crate.
fn is_root(file: &Path) -> bool {
    ["lib.rs", "main.rs"].iter().any(|name| file == Path::new(name))
}

/// Finds the files that lie on a cycle, or between two cycles.
fn in_cycles(sources: &BTreeMap<Module, Source>) -> BTreeMap<&Path, BTreeSet<&Path>> {
    let mut uses = uses(sources);
    // A file that uses none, or that none uses, is in no cycle.
    loop {
        let all: BTreeSet<&Path> = uses.values().flatten().copied().collect();
        let before = uses.len();
        uses.retain(|file, used| !used.is_empty() && all.contains(file));
        let left: BTreeSet<&Path> = uses.keys().copied().collect();
        for used in uses.values_mut() {
            used.retain(|file| left.contains(file));
        }
        if uses.len() == before {
            return uses;
        }
    }
}

/// Finds the sources of each crate of the workspace, by the crate's name.
fn crates() -> BTreeMap<String, BTreeMap<Module, Source>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap());
    let mut crates: BTreeMap<_, _> = folders
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            (name, read(&entry.path().join("src")))
        })
        .collect();
    crates.insert(String::from("seriatim"), sources());
    crates
}

fn folder(file: &Path) -> &str {
    file.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs")
}

fn sources() -> BTreeMap<Module, Source> {
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"))
}

#[test]
fn folders_point_in_one_direction() {
    let sources = sources();
    let uses = uses(&sources);
    let place = |file: &Path| DIRECTION.iter().position(|name| *name == folder(file));
    let mut between = 0;
    for (file, used) in &uses {
        if is_root(file) {
            continue;
        }
        let own = place(file);
        assert!(own.is_some(), "{}: give its folder a place in DIRECTION", file.display());
        for other in used {
            between += usize::from(folder(file) != folder(other));
            assert!(place(other) <= own, "{} uses {}", file.display(), other.display());
        }
    }
    assert!(between > 200, "the test reads no imports any more: {between}");
}

#[test]
fn no_two_files_need_each_other() {
    let crates = crates();
    assert!(crates.len() > 5, "the test does not find the crates any more");
    for (name, sources) in &crates {
        assert!(!sources.is_empty(), "{name} has no sources");
        let cycles = in_cycles(sources);
        assert!(cycles.is_empty(), "files of {name} that need each other: {cycles:#?}");
    }
}

#[test]
fn each_folder_says_what_lives_there() {
    // The headers of public folders are what users read.
    let private = |source: &&Source| !["testing", "primary"].contains(&folder(&source.file));
    for source in sources().values().filter(private).filter(|of| of.file.ends_with("mod.rs")) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(&source.file);
        let text = fs::read_to_string(path).unwrap();
        let header: Vec<&str> = text.lines().take_while(|line| line.starts_with("//!")).collect();
        let text = header.join(" ").replace("//!", "");
        let sentences = text.split_inclusive(['.', '?']).filter(|part| part.len() > 3).count();
        assert!((1..=5).contains(&sentences), "{}: {sentences} sentences", source.file.display());
    }
}

/// Each background task of a processor is reported, restarted and shown by its health if it panics.
#[test]
fn each_background_task_is_supervised() {
    let mut files_found = Vec::new();
    files(Path::new("src/processor"), &["rs"], &mut files_found);
    let mut tasks = 0;
    for file in files_found {
        let text = code(&fs::read_to_string(&file).unwrap());
        for (at, _) in text.match_indices("tasks.spawn(") {
            let rest = &text[at..];
            let body = &rest[..rest.find("\n}\n").unwrap_or(rest.len())];
            // A thread's end, and a heartbeat, which calls nothing.
            let pure =
                ["drop(end.await)", "runtime.run(interval"].iter().any(|pure| body.contains(pure));
            assert!(pure || body.contains("supervised("), "{}: {body}", file.display());
            tasks += 1;
        }
    }
    assert!(tasks > 7, "{tasks} were found");
}

#[test]
fn imports_are_read_through_every_form() {
    let text = "use a::{self, b as c, d::{e, f}};";
    let found = imports(text.trim_start_matches("use ").trim_end_matches(';'));
    let found: Vec<String> =
        found.iter().map(|import| format!("{}={}", import.name, import.path.join("::"))).collect();
    assert_eq!(found, ["a=a", "c=a::b", "e=a::d::e", "f=a::d::f"]);
    let known: BTreeSet<Module> = [split("x::y"), split("x::z")].into();
    let from =
        |path: &str| absolute(&split(path), &split("x::y"), &known).map(|path| path.join("::"));
    assert_eq!(from("super::z::W").as_deref(), Some("x::z::W"));
    assert_eq!(from("crate::q").as_deref(), Some("q"));
    assert_eq!(from("std::fmt"), None);
}
