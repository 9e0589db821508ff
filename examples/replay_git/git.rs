//! Queries of git. All use `-z` and are read as bytes: a path may have any byte but NUL.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinHandle;

use crate::Result;
use crate::change::{Change, Entry, RepoPath};

/// A repository with at least one commit.
pub(crate) struct Repository {
    path: PathBuf,
    shallow: bool,
}

impl Repository {
    pub(crate) async fn open(path: &Path) -> Result<Self> {
        let shown = path.display();
        if !path.is_dir() {
            return Err(
                format!("{shown} is not a folder: name a git repository with --repo").into()
            );
        }
        let mut repository = Self { path: path.to_owned(), shallow: false };
        let found = repository.output(&["rev-parse", "--is-shallow-repository"]).await?;
        if !found.status.success() {
            let why = said(&found.stderr);
            return Err(format!(
                "{shown} is not a git repository that can be read: {why}\nname one with --repo"
            )
            .into());
        }
        repository.shallow = found.stdout.starts_with(b"true");
        let head =
            repository.output(&["rev-parse", "--quiet", "--verify", "HEAD^{commit}"]).await?;
        if !head.status.success() {
            return Err(format!(
                "{shown} has no commits on its current branch, so there is nothing to replay"
            )
            .into());
        }
        Ok(repository)
    }

    pub(crate) fn is_shallow(&self) -> bool {
        self.shallow
    }

    /// Returns the commits up to `HEAD` along the first parents, oldest first.
    pub(crate) async fn commits(&self) -> Result<Vec<String>> {
        let list = self.ask(&["rev-list", "--first-parent", "--reverse", "HEAD"]).await?;
        Ok(String::from_utf8(list)?.lines().map(str::to_owned).collect())
    }

    /// Returns the files of a commit.
    pub(crate) async fn tree(&self, commit: &str) -> Result<HashMap<RepoPath, Entry>> {
        let list = self.ask(&["ls-tree", "-r", "-z", "--full-tree", commit]).await?;
        let lines = list.split(|byte| *byte == 0).filter(|line| !line.is_empty());
        lines.map(tree_entry).collect()
    }

    /// Returns the changes of each commit against the one before it, of the first one against
    /// nothing.
    pub(crate) fn changes(&self, commits: &[String]) -> Result<Changes> {
        let mut git = self
            .git(&["diff-tree", "--stdin", "--root", "-r", "--raw", "-z"])
            .args(["--no-renames", "--no-abbrev", "--ignore-submodules=none"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let pipe = |name| format!("git has no {name}");
        let mut stdin = git.stdin.take().ok_or_else(|| pipe("stdin"))?;
        let stdout = git.stdout.take().ok_or_else(|| pipe("stdout"))?;
        let mut stderr = git.stderr.take().ok_or_else(|| pipe("stderr"))?;
        // A second id on the line stands for the parents, so a merge is compared with its first
        // parent alone.
        let mut lines = String::new();
        for (n, commit) in commits.iter().enumerate() {
            lines += commit;
            if let Some(parent) = n.checked_sub(1).and_then(|before| commits.get(before)) {
                lines = lines + " " + parent;
            }
            lines.push('\n');
        }
        // Beside the reading: git answers before it has read everything, and a full pipe would stop
        // both.
        tokio::spawn(async move {
            // If git is gone, its exit status says why.
            let _ = stdin.write_all(lines.as_bytes()).await;
        });
        let complaint = tokio::spawn(async move {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text).await;
            text
        });
        Ok(Changes { git, stdout: BufReader::new(stdout), complaint, commit: String::new() })
    }

    async fn ask(&self, args: &[&str]) -> Result<Vec<u8>> {
        let output = self.output(args).await?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(format!("git {} failed: {}", args.join(" "), said(&output.stderr)).into())
    }

    async fn output(&self, args: &[&str]) -> Result<Output> {
        let output = self.git(args).stdin(Stdio::null()).output().await;
        output.map_err(|error| format!("the program `git` could not be run: {error}").into())
    }

    fn git(&self, args: &[&str]) -> Command {
        let mut git = Command::new("git");
        git.arg("-C").arg(&self.path).args(args).kill_on_drop(true);
        // Set inside a git hook, say: they would lead to another repository.
        for name in [
            "GIT_DIR",
            "GIT_WORK_TREE",
            "GIT_INDEX_FILE",
            "GIT_COMMON_DIR",
            "GIT_OBJECT_DIRECTORY",
            "GIT_ALTERNATE_OBJECT_DIRECTORIES",
            "GIT_NAMESPACE",
        ] {
            git.env_remove(name);
        }
        git.env("LC_ALL", "C");
        git
    }
}

/// The changes of a history, as git prints them.
pub(crate) struct Changes {
    git: Child,
    stdout: BufReader<ChildStdout>,
    complaint: JoinHandle<Vec<u8>>,
    commit: String,
}

impl Changes {
    pub(crate) async fn next(&mut self) -> Result<Option<Change>> {
        loop {
            let Some(field) = self.field().await? else {
                return self.end().await;
            };
            let Some(change) = field.strip_prefix(b":") else {
                self.commit = String::from_utf8(field)?;
                continue;
            };
            let (old, new) = sides(std::str::from_utf8(change)?)?;
            let path = self.field().await?.ok_or("git stopped before a path")?;
            return Ok(Some(Change {
                commit: self.commit.clone(),
                path: RepoPath(path),
                old,
                new,
            }));
        }
    }

    async fn field(&mut self) -> Result<Option<Vec<u8>>> {
        let mut field = Vec::new();
        self.stdout.read_until(0, &mut field).await?;
        Ok((field.pop() == Some(0)).then_some(field))
    }

    /// A history that git could not read to its end must not pass for a short one.
    async fn end(&mut self) -> Result<Option<Change>> {
        let status = self.git.wait().await?;
        if status.success() {
            return Ok(None);
        }
        let complaint = (&mut self.complaint).await?;
        Err(format!("git diff-tree failed: {}", said(&complaint)).into())
    }
}

/// `100644 100755 <old id> <new id> M`
fn sides(change: &str) -> Result<(Option<Entry>, Option<Entry>)> {
    let mut words = change.split(' ');
    let mut word = || words.next().ok_or_else(|| format!("git said {change:?}"));
    let (old_mode, new_mode, old, new) = (word()?, word()?, word()?, word()?);
    let entry = |mode: &str, blob: &str| {
        // The mode of a file that is not there.
        (mode != "000000").then(|| Entry { mode: mode.to_owned(), blob: blob.to_owned() })
    };
    Ok((entry(old_mode, old), entry(new_mode, new)))
}

/// `100644 blob <id>\t<path>`
fn tree_entry(line: &[u8]) -> Result<(RepoPath, Entry)> {
    let bad = || format!("git ls-tree said {:?}", String::from_utf8_lossy(line));
    let tab = line.iter().position(|byte| *byte == b'\t').ok_or_else(bad)?;
    let mut words = std::str::from_utf8(&line[..tab])?.split(' ');
    let (Some(mode), Some(_), Some(blob)) = (words.next(), words.next(), words.next()) else {
        return Err(bad().into());
    };
    let entry = Entry { mode: mode.to_owned(), blob: blob.to_owned() };
    Ok((RepoPath(line[tab + 1..].to_vec()), entry))
}

fn said(stderr: &[u8]) -> String {
    String::from_utf8_lossy(stderr).trim().to_owned()
}
