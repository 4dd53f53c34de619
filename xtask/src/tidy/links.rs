//! Links in Markdown that point at files, and at headings in them.

use super::Finding;

/// The files of the repository, by their paths from the root.
pub trait Files {
    fn exists(&self, path: &str) -> bool;
    /// `None` if it cannot be read.
    fn text(&self, path: &str) -> Option<String>;
}

/// Finds links to files and headings that do not exist.
pub fn check(path: &str, text: &str, files: &impl Files) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in prose(text) {
        for target in targets(line) {
            let leads_to_file = match resolve(path, target) {
                None => true,
                Some(file) => file.is_some_and(|file| files.exists(&file)),
            };
            if !leads_to_file || !leads_to_heading(path, text, target, files) {
                let what = format!("the link to `{target}` leads nowhere");
                findings.push(Finding {
                    path: path.to_owned(),
                    line: number,
                    what,
                });
            }
        }
    }
    findings
}

/// The lines outside of fenced code, by their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    let lines = (1..).zip(text.lines());
    lines.filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        !fenced && !is_fence
    })
}

/// Whether the part of a link after `#` is a heading of its file, or an anchor's id. Only Markdown has headings that we know.
fn leads_to_heading(path: &str, text: &str, target: &str, files: &impl Files) -> bool {
    let Some((file, anchor)) = target.split_once('#').filter(|it| !it.1.is_empty()) else {
        return true;
    };
    if file.is_empty() {
        return has_heading(text, anchor);
    }
    match resolve(path, target).flatten() {
        Some(file) if file.ends_with(".md") => files
            .text(&file)
            .is_none_or(|text| has_heading(&text, anchor)),
        _ => true,
    }
}

fn has_heading(text: &str, anchor: &str) -> bool {
    let own = format!("<a id=\"{anchor}\">");
    prose(text).any(|(_, line)| {
        if line.contains(&own) {
            return true;
        }
        let title = line.trim_start_matches('#');
        title.len() < line.len() && title.starts_with(' ') && slug(title.trim()) == anchor
    })
}

/// A heading as GitHub names it in links. (It numbers repeated ones: we repeat none that we link to.)
fn slug(title: &str) -> String {
    let kept = title.chars().filter_map(|char| match char {
        ' ' => Some('-'),
        '-' | '_' => Some(char),
        _ => char.is_alphanumeric().then_some(char),
    });
    kept.flat_map(char::to_lowercase).collect()
}

/// The targets of `[text](target)`, `![text](target)` and `[name]: target` in one line.
fn targets(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    // Every second piece between backquotes is code, where brackets mean something else.
    for piece in line.split('`').step_by(2) {
        let links = piece.match_indices("](").filter_map(|(at, open)| {
            let rest = &piece[at + open.len()..];
            rest.find(')').map(|end| &rest[..end])
        });
        found.extend(links);
    }
    if let Some((name, target)) = line.split_once("]: ")
        && name.starts_with('[')
        && !name.starts_with("[^")
    {
        found.push(target);
    }
    // A title may follow the target.
    found
        .iter()
        .map(|target| target.split_whitespace().next().unwrap_or(""))
        .collect()
}

/// The file that a link means, from the root; None if it means no file of ours,
/// Some(None) if it leaves the repository.
fn resolve(path: &str, target: &str) -> Option<Option<String>> {
    let file = target.split('#').next().unwrap_or("");
    if target.contains("://") || target.starts_with("mailto:") || file.is_empty() {
        return None;
    }
    let mut parts: Vec<&str> = if file.starts_with('/') {
        Vec::new()
    } else {
        path.split('/').collect()
    };
    parts.pop();
    for part in file.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                if parts.pop().is_none() {
                    return Some(None);
                }
            }
            part => parts.push(part),
        }
    }
    Some(Some(parts.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Few;

    impl Files for Few {
        fn exists(&self, path: &str) -> bool {
            matches!(path, "README.md" | "docs/a.md" | "docs" | "")
        }

        fn text(&self, path: &str) -> Option<String> {
            let text = "# A\n```\n# code\n```\n## Part\n### 4. `if_version`, and the rest\n";
            (path == "docs/a.md").then(|| text.to_owned())
        }
    }

    fn dead(path: &str, text: &str) -> Vec<usize> {
        check(path, text, &Few)
            .into_iter()
            .map(|finding| finding.line)
            .collect()
    }

    #[test]
    fn links_to_missing_files_are_found() {
        assert_eq!(dead("README.md", "[a](docs/a.md)\n[b](docs/b.md)\n"), [2]);
        assert_eq!(
            dead("docs/a.md", "[r](../README.md), [r](README.md)\n"),
            [1]
        );
        assert_eq!(dead("README.md", "![picture](demo.svg \"title\")\n"), [1]);
        assert_eq!(dead("README.md", "[a]: docs/b.md\n[b]: docs/a.md\n"), [1]);
        assert_eq!(dead("README.md", "[`code`](docs/b.md)\n"), [1]);
        assert_eq!(dead("README.md", "[up](../x)\n"), [1]);
    }

    #[test]
    fn links_to_missing_headings_are_found() {
        let fine =
            "[a](docs/a.md#part) [b](docs/a.md#4-if_version-and-the-rest) [c](#here)\n# Here\n";
        assert_eq!(dead("README.md", fine), [0_usize; 0]);
        let own = "<a id=\"quotas\"></a>**Quotas.** [a](#quotas)\n";
        assert_eq!(dead("README.md", own), [0_usize; 0]);
        assert_eq!(dead("README.md", "[a](docs/a.md#code)\n"), [1]);
        assert_eq!(dead("README.md", "## Here\n[a](#there)\n"), [2]);
        assert_eq!(dead("docs/a.md", "[a](a.md#parts)\n"), [1]);
    }

    #[test]
    fn what_means_no_file_is_left_alone() {
        let fine = "[a](https://x.y/z#w) [b](docs/#top) [c](docs/a.md#part) [d](/docs/a.md) [e](mailto:a@b) [f](docs/)\n\
                    `[x](y)` is code\n```\n[x](y)\n```\n[^1]: a footnote\n";
        assert_eq!(dead("README.md", fine), [0_usize; 0]);
    }
}
