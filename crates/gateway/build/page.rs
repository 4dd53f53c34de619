//! Makes a table of the files of the page, which are in the binary.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// `page.rs`: for each folder of the page a list of paths in it and contents.
pub fn files() -> io::Result<()> {
    let variable = |name| env::var_os(name).map(PathBuf::from).unwrap_or_default();
    let page = variable("CARGO_MANIFEST_DIR").join("page");
    let mut code = String::new();
    for folder in ["templates", "assets", "catalogues", "preview"] {
        let folder_path = page.join(folder);
        let mut files = Vec::new();
        list(&folder_path, &mut files)?;
        files.sort();
        let name = folder.to_uppercase();
        let _ = writeln!(code, "pub static {name}: &[(&str, &[u8])] = &[");
        for file in files {
            let inside = file.strip_prefix(&folder_path).unwrap_or(&file);
            let _ = writeln!(
                code,
                "    ({:?}, include_bytes!({:?})),",
                inside.display().to_string(),
                file.display().to_string()
            );
        }
        code.push_str("];\n");
    }
    fs::write(variable("OUT_DIR").join("page.rs"), code)
}

/// All files below a folder. A change of one of the folders makes the table anew, a change of a file is known to rustc.
fn list(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    println!("cargo::rerun-if-changed={}", folder.display());
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => list(&path, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}
