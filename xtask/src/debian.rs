//! Programs out of Debian's packages, unpacked into the target folder: nothing is installed, and no service is started.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::{packages, shell};

/// Downloads packages and unpacks them, which takes no rights. Returns the folder that stands for `/`.
pub fn unpack(names: &[&str], folder: &Path) -> Result<PathBuf> {
    if !packages::has("apt-get") {
        bail!("without apt-get it cannot be unpacked here");
    }
    fs::create_dir_all(folder)?;
    eprintln!(
        "xtask: unpacking {} into {}",
        names.join(", "),
        folder.display()
    );
    if download(names, folder).is_err() {
        // A fresh machine has no list of packages, and an old list has versions that are gone.
        packages::update("apt-get could not download it with its list of packages")?;
        download(names, folder)?;
    }
    let root = folder.join("root");
    for entry in fs::read_dir(folder)? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "deb") {
            let mut extract = shell::command("dpkg-deb", "--extract");
            shell::run(extract.arg(&file).arg(&root))?;
            fs::remove_file(file)?;
        }
    }
    Ok(root)
}

fn download(names: &[&str], folder: &Path) -> Result<()> {
    let mut download = shell::command("apt-get", "download -q");
    shell::run(
        download
            .args(names)
            .current_dir(folder)
            .stdout(std::io::stderr()),
    )
}
