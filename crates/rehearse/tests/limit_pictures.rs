//! The pictures and the table of docs/limits.md are what is drawn and counted now.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use nowserving_rehearse::{limit_pictures, limit_rows};

const AGAIN: &str = "draw them again: nowserving limit pictures docs/limits";

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

#[test]
fn the_pictures_in_the_docs_are_those_that_are_drawn() {
    let pictures = limit_pictures().unwrap();
    let page = fs::read_to_string(docs().join("limits.md")).unwrap();
    for picture in &pictures {
        let kept = fs::read_to_string(docs().join("limits").join(&picture.file));
        assert_eq!(
            kept.ok().as_ref(),
            Some(&picture.svg),
            "{}: {AGAIN}",
            picture.file
        );
        let link = format!("limits/{}", picture.file);
        assert!(page.contains(&link), "docs/limits.md does not show {link}");
    }
    let kept = fs::read_dir(docs().join("limits")).unwrap();
    assert_eq!(kept.count(), pictures.len(), "no others; {AGAIN}");
}

#[test]
fn the_table_in_the_docs_is_what_is_counted() {
    let page = fs::read_to_string(docs().join("limits.md")).unwrap();
    for row in limit_rows().unwrap() {
        let line = format!("| {} |", row.cells().join(" | "));
        assert!(page.contains(&line), "docs/limits.md lacks {line}");
    }
}
