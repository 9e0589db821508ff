//! Finds an installed PostgreSQL.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::ServerError;

/// The places to search, best first.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// `PG_BIN`: it is set on purpose, so a wrong one is an error.
    pg_bin: Option<PathBuf>,
    /// The answer of `pg_config --bindir`. The folder may be there without a server (a client's
    /// headers bring it).
    pg_config: Option<PathBuf>,
    path: Vec<PathBuf>,
    /// `/`, except in a test.
    root: PathBuf,
}

/// Installations side by side, as (folder of the versions, prefix of a version's name, programs in
/// it).
const SIDE_BY_SIDE: [(&str, &str, &str); 5] = [
    ("usr/lib/postgresql", "", "bin"),
    ("usr", "pgsql-", "bin"),
    ("opt/homebrew/opt", "postgresql@", "bin"),
    ("usr/local/opt", "postgresql@", "bin"),
    ("Applications/Postgres.app/Contents/Versions", "", "bin"),
];

impl Places {
    pub(super) fn of_this_machine() -> Self {
        Self {
            pg_bin: env::var_os("PG_BIN").filter(|folder| !folder.is_empty()).map(PathBuf::from),
            pg_config: pg_config_bindir(),
            path: env::var_os("PATH").iter().flat_map(env::split_paths).collect(),
            root: PathBuf::from("/"),
        }
    }

    /// Returns the folder of the first PostgreSQL that can be made into a server.
    pub(super) fn find(&self) -> Result<Option<PathBuf>, ServerError> {
        if let Some(folder) = &self.pg_bin {
            return checked(folder).map(Some);
        }
        let side_by_side = SIDE_BY_SIDE
            .iter()
            .flat_map(|(folder, prefix, bin)| versions(&self.root.join(folder), prefix, bin));
        Ok(self
            .pg_config
            .iter()
            .chain(&self.path)
            .cloned()
            .chain(side_by_side)
            .find(|folder| has_server(folder)))
    }
}

/// Returns `folder`, if it has the programs.
pub(super) fn checked(folder: &Path) -> Result<PathBuf, ServerError> {
    if has_server(folder) {
        Ok(folder.to_path_buf())
    } else {
        Err(ServerError::NoBinaries { folder: folder.to_path_buf() })
    }
}

pub(super) fn has_server(folder: &Path) -> bool {
    ["initdb", "postgres"].iter().all(|program| folder.join(program).is_file())
}

/// Returns the folders `<folder>/<prefix><version>/<bin>`, the highest version first.
fn versions(folder: &Path, prefix: &str, bin: &str) -> Vec<PathBuf> {
    let mut found: Vec<(Vec<u32>, PathBuf)> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let version = name.strip_prefix(prefix)?;
            // A name that is no number (`latest`) comes last.
            let numbers = version.split('.').map_while(|part| part.parse().ok()).collect();
            Some((numbers, entry.path().join(bin)))
        })
        .collect();
    found.sort();
    found.into_iter().rev().map(|(_, folder)| folder).collect()
}

fn pg_config_bindir() -> Option<PathBuf> {
    let answer = Command::new("pg_config").arg("--bindir").stdin(Stdio::null()).output().ok()?;
    let folder = String::from_utf8(answer.stdout).ok()?;
    (answer.status.success() && !folder.trim().is_empty()).then(|| PathBuf::from(folder.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts the two programs into `folder` under `root`.
    fn install(root: &Path, folder: &str) -> PathBuf {
        let folder = root.join(folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("initdb"), "").unwrap();
        fs::write(folder.join("postgres"), "").unwrap();
        folder
    }

    #[test]
    fn the_first_complete_folder_wins() {
        let root = tempfile::tempdir().unwrap();
        let mut places = Places { root: root.path().to_path_buf(), ..Places::default() };
        assert_eq!(places.find().unwrap(), None);

        // Each one is preferred to those before it.
        let steps = [
            "Applications/Postgres.app/Contents/Versions/latest/bin",
            "Applications/Postgres.app/Contents/Versions/18/bin",
            "usr/local/opt/postgresql@17/bin",
            "opt/homebrew/opt/postgresql@14/bin",
            "usr/pgsql-16/bin",
            "usr/lib/postgresql/9.6/bin",
            "usr/lib/postgresql/14/bin",
            "usr/lib/postgresql/15/bin",
        ];
        for step in steps {
            let folder = install(root.path(), step);
            assert_eq!(places.find().unwrap(), Some(folder), "{step}");
        }

        let on_path = install(root.path(), "some/where");
        places.path = vec![root.path().join("missing"), on_path.clone()];
        assert_eq!(places.find().unwrap(), Some(on_path));

        let of_pg_config = install(root.path(), "of/pg_config");
        places.pg_config = Some(of_pg_config.clone());
        assert_eq!(places.find().unwrap(), Some(of_pg_config));

        let asked_for = install(root.path(), "asked/for");
        places.pg_bin = Some(asked_for.clone());
        assert_eq!(places.find().unwrap(), Some(asked_for));
    }

    #[test]
    fn a_folder_without_both_programs_does_not_count() {
        let root = tempfile::tempdir().unwrap();
        let client_only = install(root.path(), "client");
        fs::remove_file(client_only.join("postgres")).unwrap();
        let whole = install(root.path(), "usr/lib/postgresql/15/bin");

        let mut places = Places {
            pg_config: Some(client_only.clone()),
            root: root.path().to_path_buf(),
            ..Places::default()
        };
        assert_eq!(places.find().unwrap(), Some(whole));

        places.pg_bin = Some(client_only);
        assert!(matches!(places.find(), Err(ServerError::NoBinaries { .. })));
    }
}
