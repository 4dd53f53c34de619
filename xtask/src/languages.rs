//! Python and Node.js, which the tests run examples with. What those need besides, the
//! tests install themselves, under the target folder.

use anyhow::{Result, ensure};

use crate::{packages, shell};

const HAS_PIP: &str = "\
import pip, venv
major, minor = pip.__version__.split('.')[:2]
assert (int(major), int(minor)) >= (22, 3)
";

/// Checks that both are there, and installs them where this can be done without asking.
pub fn ensure() -> Result<()> {
    if !has_python() {
        let advice = "python3 with venv and pip 22.3 or later is missing: install it (https://www.python.org), or leave \
                      an environment that has no pip";
        packages::install(advice, "python", "python3 python3-venv python3-pip")?;
        ensure!(
            has_python(),
            "python3 was installed, but without venv or pip 22.3"
        );
    }
    if !has_node() {
        let advice = "Node.js with npm is missing: install it (https://nodejs.org)";
        packages::install(advice, "node", "nodejs npm")?;
        ensure!(has_node(), "Node.js was installed, but does not run");
    }
    Ok(())
}

/// Debian's python3 comes without what makes virtual environments, and what installs packages in them: pip does that from
/// outside since 22.3.
fn has_python() -> bool {
    shell::succeeds(shell::command("python3", "-c").arg(HAS_PIP))
}

fn has_node() -> bool {
    packages::has("node") && packages::has("npm")
}
