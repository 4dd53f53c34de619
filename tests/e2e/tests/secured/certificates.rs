//! Certificates of a test's own.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use nowserving_client::Security;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};

/// Signs certificates.
pub struct Authority {
    name: String,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub fn new(name: &str) -> Result<Authority> {
        let mut params = CertificateParams::new(Vec::<String>::new())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Ok(Authority {
            name: name.to_owned(),
            issuer: CertifiedIssuer::self_signed(params, KeyPair::generate()?)?,
        })
    }

    /// Writes a certificate for 127.0.0.1 with its key, and the authority's own. `good` writes that as `ca.crt`, as the
    /// configuration of the server has it.
    pub fn write(&self, folder: &Path, name: &str) -> Result<Security> {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let root = match self.name.as_str() {
            "good" => "ca.crt".to_owned(),
            other => format!("{other}-ca.crt"),
        };
        let path = |name: String| -> PathBuf { folder.join(name) };
        let (root, crt, secret) = (
            path(root),
            path(format!("{name}.crt")),
            path(format!("{name}.key")),
        );
        std::fs::write(&root, self.issuer.pem())?;
        std::fs::write(&crt, certificate.pem())?;
        write_private(&secret, &key.serialize_pem())?;
        Ok(Security {
            tls_ca_file: Some(root),
            tls_cert_file: Some(crt),
            tls_key_file: Some(secret),
            ..Security::default()
        })
    }
}

/// Writes a file for its owner alone.
pub fn write_private(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text)?;
    set_mode(path, 0o600)
}

pub fn set_mode(path: &Path, mode: u32) -> Result<()> {
    Ok(std::fs::set_permissions(
        path,
        std::fs::Permissions::from_mode(mode),
    )?)
}
