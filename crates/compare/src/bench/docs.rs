//! Tables and pictures for `docs/benchmarks`.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::picture;
use super::report::{Report, Section};

/// Longer lines of documents are wrapped.
const WIDTH: usize = 118;

/// Writes `results.md`, and a picture of each row that compares systems.
///
/// # Errors
/// A file cannot be written.
pub fn write(report: &Report, folder: &Path) -> Result<()> {
    let save = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("wrote {}", path.display());
        anyhow::Ok(())
    };
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    for section in &report.sections {
        if let Some(svg) = picture::of(section) {
            save(&picture_name(section), &svg)?;
        }
    }
    save("results.md", &page(report))
}

fn picture_name(section: &Section) -> String {
    format!("{}.svg", section.name)
}

fn page(report: &Report) -> String {
    let (goals, met) = report.goals();
    let mut page = String::from(
        "# Results\n\nWritten by `cargo xtask bench --write-docs docs/benchmarks`: see [how to read it](README.md).\n\n",
    );
    for line in report.circumstances() {
        page.push_str(&wrapped(&format!("- {line}")));
    }
    page.push_str(&wrapped(&format!("- {met} of {goals} goals met")));
    for section in &report.sections {
        page.push_str(&format!("\n## {}\n\n", section.name));
        page.push_str(&wrapped(&format!("{}.", section.about)));
        if picture::of(section).is_some() {
            let file = picture_name(section);
            page.push_str(&format!(
                "\n![{}: requests a second]({file})\n",
                section.name
            ));
        }
        for table in section.tables() {
            page.push('\n');
            for (nth, row) in table.iter().enumerate() {
                page.push_str(&format!("| {} |\n", row.join(" | ")));
                if nth == 0 {
                    page.push_str(&format!("|{}\n", "---|".repeat(row.len())));
                }
            }
        }
        for (failure, count) in &section.failures {
            page.push_str(&wrapped(&format!("\nFailed: {count} requests: {failure}")));
        }
    }
    page
}

/// Broken between words; what follows in an item of a list is indented.
fn wrapped(text: &str) -> String {
    let indent = if text.starts_with("- ") { "  " } else { "" };
    let (mut page, mut line) = (String::new(), String::new());
    for word in text.split(' ') {
        if !line.is_empty() && line.chars().count() + word.chars().count() >= WIDTH {
            page.push_str(&line);
            page.push('\n');
            line = indent.to_owned();
        } else if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    page.push_str(&line);
    page.push('\n');
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words() {
        let text = format!("- {}", vec!["word"; 40].join(" "));
        let page = wrapped(&text);
        assert!(page.lines().all(|line| line.chars().count() <= WIDTH));
        assert_eq!(page.split_whitespace().count(), 41);
        assert!(
            page.lines()
                .nth(1)
                .is_some_and(|line| line.starts_with("  word"))
        );
    }
}
