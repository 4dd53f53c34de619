//! Words as a shell needs them.

/// One word of a command that can be pasted into a shell.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=.,:/+%@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_with_a_meaning_for_shells_are_quoted() {
        assert_eq!(quoted("--data-dir=/a/b"), "--data-dir=/a/b");
        assert_eq!(quoted("my data"), "'my data'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
