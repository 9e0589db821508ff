//! The page of all settings.

use super::read;

/// The names of the methods of a builder in a file.
fn setters(file: &str, of: &str) -> Vec<String> {
    let source = read(file);
    let (_, methods) = source.split_once(&format!("impl {of} {{")).unwrap();
    let (methods, _) = methods.split_once("\n}\n").unwrap();
    let setters = methods.split("    pub fn ").skip(1);
    let setters =
        setters.filter(|rest| rest.contains("(mut self, ") || rest.contains("(mut self)"));
    setters.map(|rest| rest.split(['(', '<']).next().unwrap().to_owned()).collect()
}

#[test]
fn the_page_of_settings_has_all() {
    let page = read("docs/settings.md");
    let section = |title: &str| {
        let (_, rest) = page.split_once(&format!("## {title}\n")).unwrap();
        rest.split("\n## ").next().unwrap().to_owned()
    };
    for (title, file, of) in [
        ("Of a queue, stored", "src/job/queue_settings.rs", "QueueSettings"),
        ("Of a queue, in one process", "src/job/queue_options.rs", "QueueOptions"),
        ("Of a processor", "src/processor/builder.rs", "ProcessorBuilder"),
        ("Of a client", "src/client/client.rs", "Client"),
    ] {
        let section = section(title);
        let setters = setters(file, of);
        assert!(setters.len() > 3, "{file}: {setters:?}");
        for setter in setters.into_iter().filter(|setter| setter != "build") {
            let is_row =
                |line: &str| line.split(" | ").next().unwrap().contains(&format!("`{setter}`"));
            assert!(section.lines().any(is_row), "{setter} of {of}");
        }
    }
}
