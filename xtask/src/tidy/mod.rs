//! `cargo xtask tidy`: the repository's own rules, checked by reading it.
//!
//! Each rule is a function from text to findings, so that it can be tested without files.

mod deps;
mod links;
mod text;

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::shell;

/// One thing that is wrong, and where.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// Path from the root.
    pub path: String,
    /// Counted from 1; 0 if it concerns the whole file.
    pub line: usize,
    /// What is wrong and what to do about it.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(out, "{}: {}", self.path, self.what),
            line => write!(out, "{}:{line}: {}", self.path, self.what),
        }
    }
}

/// Checks the whole workspace; an error if anything is wrong.
pub fn run() -> Result<()> {
    let root = shell::root();
    let files = files(&root)?;
    let mut findings = Vec::new();
    for file in &files {
        let path = file
            .strip_prefix(&root)
            .unwrap_or(file)
            .to_string_lossy()
            .replace('\\', "/");
        let Some(text) = read_text(file)? else {
            continue;
        };
        findings.extend(text::check(&path, &text));
        if path.ends_with(".md") {
            findings.extend(links::check(&path, &text, &Under(&root)));
        }
    }
    findings.extend(deps::check(&metadata()?)?);

    for finding in &findings {
        eprintln!("{finding}");
    }
    if !findings.is_empty() {
        bail!("tidy: {} findings in {} files", findings.len(), files.len());
    }
    eprintln!("tidy: {} files, nothing found", files.len());
    Ok(())
}

/// Every file that belongs to the repository. Git says which: a walk of our own would have
/// to know what is ignored. Without git (an unpacked archive) the walk has to do.
pub fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut git = shell::command("git", "ls-files -z --cached --others --exclude-standard");
    let mut files: Vec<PathBuf> = match git.output() {
        Ok(done) if done.status.success() => {
            let listed = String::from_utf8_lossy(&done.stdout).into_owned();
            listed
                .split('\0')
                .filter(|name| !name.is_empty())
                .map(|name| root.join(name))
                .collect()
        }
        _ => walk(root)?,
    };
    files.retain(|file| file.is_file());
    files.sort();
    Ok(files)
}

fn walk(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in
        std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        let entry = entry?;
        let is_output = matches!(entry.file_name().to_str(), Some("target" | ".git"));
        if entry.file_type()?.is_dir() && !is_output {
            files.extend(walk(&entry.path())?);
        } else if !is_output {
            files.push(entry.path());
        }
    }
    Ok(files)
}

/// The files under this folder.
struct Under<'a>(&'a Path);

impl links::Files for Under<'_> {
    fn exists(&self, path: &str) -> bool {
        self.0.join(path).exists()
    }

    fn text(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.0.join(path)).ok()
    }
}

/// The file's text; None for what is not text.
pub fn read_text(file: &Path) -> Result<Option<String>> {
    let bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(String::from_utf8(bytes)
        .ok()
        .filter(|text| !text.contains('\0')))
}

/// What cargo knows of the workspace, for this platform only: so nothing has to be
/// downloaded that is not needed to build here.
fn metadata() -> Result<serde_json::Value> {
    let version = shell::output(&mut shell::command("rustc", "-vV"))?;
    let host = version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .context("rustc -vV names no host")?;
    let args = format!("metadata --format-version 1 --locked --filter-platform {host}");
    let metadata = shell::output(&mut shell::cargo(&args))?;
    Ok(serde_json::from_str(&metadata)?)
}
