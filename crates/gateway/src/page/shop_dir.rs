//! A shop's folder: `templates`, `catalogues` and `assets`, each of which may be missing.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use bytes::Bytes;
use serde_json::Value;

use super::PageError;

const FILES_MAX: usize = 200;
const FILE_BYTES_MAX: u64 = 4 << 20;
const DEPTH_MAX: usize = 4;

/// What was read, by its path in its folder.
#[derive(Default)]
pub struct ShopDir {
    pub templates: BTreeMap<String, String>,
    /// By language.
    pub catalogues: BTreeMap<String, Value>,
    pub assets: BTreeMap<String, Bytes>,
}

pub fn read(dir: &Path) -> Result<ShopDir, PageError> {
    if !dir.is_dir() {
        return Err(PageError::new(dir.display(), "is no folder"));
    }
    let mut shop = ShopDir::default();
    for (name, bytes) in files(&dir.join("templates"))? {
        let source = String::from_utf8(bytes);
        let source =
            source.map_err(|_| PageError::new(format!("templates/{name}"), "not UTF-8"))?;
        shop.templates.insert(name, source);
    }
    for (name, bytes) in files(&dir.join("catalogues"))? {
        let Some(language) = name.strip_suffix(".json") else {
            continue;
        };
        let bad = |what: String| PageError::new(format!("catalogues/{name}"), what);
        let catalogue = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if !language.bytes().all(is_name) || language.is_empty() {
            return Err(bad(
                "is named by its language, as in zh-Hant.json".to_owned()
            ));
        }
        shop.catalogues.insert(language.to_owned(), catalogue);
    }
    let assets = files(&dir.join("assets"))?.into_iter();
    shop.assets = assets
        .map(|(name, bytes)| (name, Bytes::from(bytes)))
        .collect();
    Ok(shop)
}

/// All files below a folder, without those whose name begins with a dot. None if there is no folder.
fn files(dir: &Path) -> Result<Vec<(String, Vec<u8>)>, PageError> {
    let mut found = Vec::new();
    if dir.is_dir() {
        list(dir, "", 0, &mut found)?;
    }
    Ok(found)
}

fn list(
    dir: &Path,
    prefix: &str,
    depth: usize,
    found: &mut Vec<(String, Vec<u8>)>,
) -> Result<(), PageError> {
    let failed = |what: &dyn std::fmt::Display| PageError::new(dir.display(), what);
    if depth > DEPTH_MAX {
        return Err(failed(&"too many folders in each other"));
    }
    for entry in fs::read_dir(dir).map_err(|error| failed(&error))? {
        let path = entry.map_err(|error| failed(&error))?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name.filter(|name| !name.starts_with('.')) else {
            continue;
        };
        let name = format!("{prefix}{name}");
        if path.is_dir() {
            list(&path, &format!("{name}/"), depth + 1, found)?;
            continue;
        }
        let of_file = |what: &dyn std::fmt::Display| PageError::new(path.display(), what);
        let metadata = fs::metadata(&path).map_err(|error| of_file(&error))?;
        if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
            return Err(of_file(&format!(
                "no file of at most {FILE_BYTES_MAX} bytes"
            )));
        }
        if found.len() >= FILES_MAX {
            return Err(of_file(&format!("more than {FILES_MAX} files")));
        }
        found.push((name, fs::read(&path).map_err(|error| of_file(&error))?));
    }
    Ok(())
}
