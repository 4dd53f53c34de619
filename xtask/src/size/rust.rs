//! Lines of Rust, by the tokens that are on them.

use ra_ap_rustc_lexer::{FrontmatterAllowed, TokenKind, tokenize};

/// A token that is neither blank nor comment.
struct Token<'a> {
    text: &'a str,
    /// Its first and last line, from 0.
    lines: (usize, usize),
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let (mut at, mut line, mut found) = (0, 0, Vec::new());
    for token in tokenize(text, FrontmatterAllowed::No) {
        let of_token = &text[at..at + token.len as usize];
        let last = line + of_token.matches('\n').count();
        let is_blank = matches!(
            token.kind,
            TokenKind::Whitespace | TokenKind::LineComment { .. } | TokenKind::BlockComment { .. }
        );
        if !is_blank {
            found.push(Token {
                text: of_token,
                lines: (line, last),
            });
        }
        (at, line) = (at + of_token.len(), last);
    }
    found
}

/// How many lines of code and of tests a file has.
pub fn lines(text: &str) -> (usize, usize) {
    let tokens = tokens(text);
    let items = test_items(&tokens);
    let in_test = |nth: usize| items.iter().any(|(from, to)| (*from..*to).contains(&nth));
    let mut all = vec![None; text.lines().count()];
    for (nth, token) in tokens.iter().enumerate() {
        let (first, last) = token.lines;
        for line in all.iter_mut().take(last + 1).skip(first) {
            line.get_or_insert(in_test(nth));
        }
    }
    let tests = all.iter().filter(|line| **line == Some(true)).count();
    let code = all.iter().filter(|line| **line == Some(false)).count();
    (code, tests)
}

/// The files of the modules that this file has for tests alone; those of a folder `mod.rs` by the folder's file name.
pub fn test_modules(path: &str, text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let stem = path.trim_end_matches(".rs");
    let name = stem.rsplit('/').next().unwrap_or_default();
    let children = match name {
        "mod" | "lib" | "main" => folder,
        _ => stem,
    };
    let mut files = Vec::new();
    for (from, to) in test_items(&tokens) {
        let item = &tokens[from..to];
        let given = item
            .windows(3)
            .find(|it| it[0].text == "path" && it[1].text == "=");
        let module = item
            .windows(3)
            .find(|it| it[0].text == "mod" && it[2].text == ";");
        match (given, module) {
            (Some(path), Some(_)) => {
                files.push(format!("{folder}/{}", path[2].text.trim_matches('"')))
            }
            (None, Some(module)) => files.push(format!("{children}/{}.rs", module[1].text)),
            _ => {}
        }
    }
    files
}

/// The tokens of each item under `#[cfg(test)]`, from its attribute to its end.
fn test_items(tokens: &[Token<'_>]) -> Vec<(usize, usize)> {
    const ATTRIBUTE: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut items, mut nth) = (Vec::new(), 0);
    while nth < tokens.len() {
        let ahead = tokens[nth..].iter().map(|token| token.text);
        if !ahead.take(ATTRIBUTE.len()).eq(ATTRIBUTE) {
            nth += 1;
            continue;
        }
        let end = end_of_item(tokens, nth + ATTRIBUTE.len());
        items.push((nth, end));
        nth = end;
    }
    items
}

/// Behind its `;`, its last brace, or (a field, a variant) its comma.
fn end_of_item(tokens: &[Token<'_>], from: usize) -> usize {
    const ITEMS: [&str; 14] = [
        "pub", "fn", "mod", "use", "impl", "struct", "enum", "const", "static", "type", "trait",
        "async", "unsafe", "let",
    ];
    let (mut depth, mut is_item) = (0_usize, false);
    for (nth, token) in tokens.iter().enumerate().skip(from) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            // The item's own place ends before it does: its last field.
            ")" | "]" | "}" if depth == 0 => return nth,
            "}" if depth == 1 => return nth + 1,
            ")" | "]" | "}" => depth -= 1,
            ";" if depth == 0 => return nth + 1,
            "," if depth == 0 && !is_item => return nth + 1,
            word if depth == 0 => is_item |= ITEMS.contains(&word),
            _ => {}
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_blanks_do_not_count() {
        let text = "//! Head.\n\n/// Doc.\nfn a() { // why\n    /* long\n    */\n    \"a\n    // no comment\"\n}\n";
        assert_eq!(lines(text), (4, 0));
    }

    #[test]
    fn an_item_under_test_counts_alone() {
        let text = "\
use a::b;
#[cfg(test)]
use a::c;
struct S {
    a: u8,
    #[cfg(test)]
    b: Vec<u8>,
}
#[cfg(test)]
impl<A, B> S {
    fn f() {}
}
fn last() {}
#[cfg(test)]
mod tests {
    fn t() {}
}
";
        assert_eq!(lines(text), (5, 12));
    }

    #[test]
    fn modules_for_tests_have_their_files() {
        let text =
            "#[cfg(test)]\n#[path = \"kv_tests.rs\"]\nmod tests;\n#[cfg(test)]\nmod rig;\nmod kv;";
        assert_eq!(
            test_modules("crates/a/src/kv.rs", text),
            ["crates/a/src/kv_tests.rs", "crates/a/src/kv/rig.rs"]
        );
        assert_eq!(
            test_modules("crates/a/src/lib.rs", text)[1],
            "crates/a/src/rig.rs"
        );
    }
}
