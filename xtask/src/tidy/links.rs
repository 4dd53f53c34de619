//! Links in Markdown that point at files.

use super::Finding;

/// Finds links to files that do not exist. `exists` is asked for paths from the root.
pub fn check(path: &str, text: &str, exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut fenced = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for target in targets(line) {
            let Some(file) = resolve(path, target) else {
                continue;
            };
            if !file.is_some_and(|file| exists(&file)) {
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

    fn dead(path: &str, text: &str) -> Vec<usize> {
        let exists = |file: &str| matches!(file, "README.md" | "docs/a.md" | "docs" | "");
        check(path, text, exists)
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
    fn what_means_no_file_is_left_alone() {
        let fine = "[a](https://x.y/z) [b](#top) [c](docs/a.md#part) [d](/docs/a.md) [e](mailto:a@b) [f](docs/)\n\
                    `[x](y)` is code\n```\n[x](y)\n```\n[^1]: a footnote\n";
        assert_eq!(dead("README.md", fine), [0_usize; 0]);
    }
}
