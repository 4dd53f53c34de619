//! The flags of `nowserving node`.

use std::ffi::OsString;

/// The flags of `nowserving node`.
#[derive(Clone, Debug, Default)]
pub struct NodeFlags(Vec<(String, OsString)>);

impl NodeFlags {
    /// Sets a flag, replacing it if it is there.
    #[must_use]
    pub fn with(mut self, flag: &str, value: impl Into<OsString>) -> NodeFlags {
        self.0.retain(|(name, _)| name != flag);
        self.0.push((flag.to_owned(), value.into()));
        self
    }

    /// Leaves flags out.
    #[must_use]
    pub fn without(mut self, flags: &[&str]) -> NodeFlags {
        self.0.retain(|(name, _)| !flags.contains(&name.as_str()));
        self
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &OsString)> {
        self.0.iter().map(|(flag, value)| (flag.as_str(), value))
    }

    /// The command line, `node` first.
    #[must_use]
    pub fn args(&self) -> Vec<OsString> {
        let flags = self
            .0
            .iter()
            .flat_map(|(flag, value)| [flag.into(), value.clone()]);
        std::iter::once("node".into()).chain(flags).collect()
    }

    /// The command line with `--join`.
    #[must_use]
    pub fn joining(&self) -> Vec<OsString> {
        let mut args = self.args();
        args.push("--join".into());
        args
    }
}
