//! User, password, patience and files for TLS. Credentials come from the environment, because `ps`
//! shows command lines.

use crate::environment::secure_var;
use crate::error::Reason;
use crate::remote::tls::{AUTHORITIES, CERTIFICATE, KEY, TlsFiles};
use crate::short_file::read_short_file;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

const USER: &str = "HIGHWATER_REDIS_USER";
const PASSWORD: &str = "HIGHWATER_REDIS_PASSWORD";
const PASSWORD_FILE: &str = "HIGHWATER_REDIS_PASSWORD_FILE";
const PATIENCE: &str = "HIGHWATER_REMOTE_PATIENCE";

/// How long a server that does not answer is waited for, unless the user sets it.
const PATIENCE_DEFAULT: Duration = Duration::from_secs(30);
/// The longest patience, in seconds: a day.
const PATIENCE_MAX: u64 = 86_400;

/// The longest file with a password, in bytes.
const PASSWORD_BYTES_MAX: usize = 64 << 10;

/// How servers are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteOptions {
    /// The user; `None`: the default one.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Secret>,
    /// A file that holds the password, read each time a device is opened.
    pub password_file: Option<PathBuf>,
    /// Files for TLS.
    pub tls: TlsFiles,
    /// How long a server that does not answer is waited for.
    pub patience: Duration,
    /// A file of the run that this process belongs to: by locks on it the processes of the run
    /// share an NBD export. It is not in the environment. `None`: this process and its children
    /// have servers to themselves, and refuse those that are full or in use.
    pub run: Option<PathBuf>,
}

/// Text that is never shown in a message.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Default for RemoteOptions {
    fn default() -> RemoteOptions {
        RemoteOptions {
            user: None,
            password: None,
            password_file: None,
            tls: TlsFiles::default(),
            patience: PATIENCE_DEFAULT,
            run: None,
        }
    }
}

impl RemoteOptions {
    /// The options with each file's path replaced by `change`.
    #[must_use]
    pub fn with_paths(self, change: impl Fn(PathBuf) -> PathBuf) -> RemoteOptions {
        let TlsFiles { authorities, certificate, key } = self.tls;
        RemoteOptions {
            password_file: self.password_file.map(&change),
            tls: TlsFiles {
                authorities: authorities.map(&change),
                certificate: certificate.map(&change),
                key: key.map(&change),
            },
            ..self
        }
    }

    /// Reads the options from an environment, in which `var` looks up a name. An empty variable
    /// counts as unset.
    ///
    /// # Errors
    /// A line that names the variable and what is wrong with it.
    pub fn from_vars(var: impl Fn(&str) -> Option<OsString>) -> Result<RemoteOptions, String> {
        let text = |name: &str| {
            let value = var(name).filter(|value| !value.is_empty()).map(OsString::into_string);
            value.transpose().map_err(|_| format!("{name} is not UTF-8"))
        };
        let path = |name: &str| var(name).filter(|file| !file.is_empty()).map(PathBuf::from);
        let patience = text(PATIENCE)?
            .map(|text| seconds(&text).map_err(|what| format!("{PATIENCE}: {what}")));
        Ok(RemoteOptions {
            user: text(USER)?,
            password: text(PASSWORD)?.map(Secret),
            password_file: path(PASSWORD_FILE),
            tls: TlsFiles {
                authorities: path(AUTHORITIES),
                certificate: path(CERTIFICATE),
                key: path(KEY),
            },
            patience: patience.transpose()?.unwrap_or(PATIENCE_DEFAULT),
            run: None,
        })
    }

    /// Reads the options from this process's environment. A process that has raised its privileges
    /// gets the default ones.
    ///
    /// # Errors
    /// As [`RemoteOptions::from_vars`].
    pub fn from_env() -> Result<RemoteOptions, String> {
        RemoteOptions::from_vars(secure_var)
    }

    /// The environment variables for these options.
    pub fn to_env(&self) -> Vec<(&'static str, OsString)> {
        let mut vars = vec![(PATIENCE, self.patience.as_secs().to_string().into())];
        vars.extend(self.user.iter().map(|user| (USER, user.into())));
        vars.extend(self.password.iter().map(|Secret(password)| (PASSWORD, password.into())));
        let files = [
            (PASSWORD_FILE, &self.password_file),
            (AUTHORITIES, &self.tls.authorities),
            (CERTIFICATE, &self.tls.certificate),
            (KEY, &self.tls.key),
        ];
        vars.extend(
            files.into_iter().filter_map(|(name, file)| Some((name, file.clone()?.into()))),
        );
        vars
    }

    /// The user, and the password of the variable or the file.
    pub(crate) fn login(&self) -> Result<Login, Reason> {
        let read = |path: &PathBuf| {
            let unusable = |errno| Reason::PasswordFile { path: path.clone(), errno };
            let bytes = read_short_file(path, PASSWORD_BYTES_MAX);
            let bytes = bytes.map_err(|error| unusable(error.raw_os_error()))?;
            let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
            let text = text.ok_or_else(|| unusable(None))?;
            Ok(Secret(text.trim_end_matches(['\n', '\r']).to_owned()))
        };
        let from_file = self.password_file.as_ref().map(read).transpose()?;
        Ok(Login { user: self.user.clone(), password: self.password.clone().or(from_file) })
    }
}

/// A number of seconds as a user writes it.
///
/// # Errors
/// The mistake, in a few words.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds @ 1..=PATIENCE_MAX) => Ok(Duration::from_secs(seconds)),
        _ => Err(format!("'{text}' is not a number of seconds from 1 to {PATIENCE_MAX}")),
    }
}

/// How to log in.
#[derive(Clone, Debug)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn read(vars: &[(&str, &str)]) -> Result<RemoteOptions, String> {
        let vars: HashMap<&str, &str> = vars.iter().copied().collect();
        RemoteOptions::from_vars(|name| vars.get(name).map(OsString::from))
    }

    #[test]
    fn options_survive_the_environment_and_show_no_password() {
        let given = [(USER, "me"), (PASSWORD, "sesame"), (PATIENCE, "7"), (PASSWORD_FILE, "/x")];
        let given = [&given[..], &[(AUTHORITIES, "/a"), (CERTIFICATE, "/c"), (KEY, "/k")]].concat();
        let options = read(&given).unwrap();
        assert_eq!(options.patience, Duration::from_secs(7));
        assert_eq!(options.tls.key, Some("/k".into()));
        let vars: HashMap<_, _> = options.to_env().into_iter().collect();
        assert_eq!(RemoteOptions::from_vars(|name| vars.get(name).cloned()), Ok(options.clone()));
        assert!(!format!("{options:?}").contains("sesame"));
        assert_eq!(read(&[]), Ok(RemoteOptions::default()));
        assert_eq!(read(&[(USER, ""), (PASSWORD_FILE, "")]), Ok(RemoteOptions::default()));
    }

    #[test]
    fn bad_patience_is_named() {
        for text in ["0", "-1", "much", "86401"] {
            let error = read(&[(PATIENCE, text)]).unwrap_err();
            assert!(error.starts_with(PATIENCE) && error.contains(text), "{error}");
        }
    }

    #[test]
    fn a_password_is_that_of_the_variable_or_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "open\n").unwrap();
        let path = file.path().to_str().unwrap();
        let password = |vars: &[(&str, &str)]| {
            read(vars).unwrap().login().map(|login| login.password.map(|Secret(text)| text))
        };
        assert_eq!(password(&[(PASSWORD_FILE, path)]), Ok(Some("open".to_owned())));
        assert_eq!(
            password(&[(PASSWORD_FILE, path), (PASSWORD, "other")]),
            Ok(Some("other".to_owned()))
        );
        assert_eq!(password(&[]), Ok(None));
        let unusable = |path: &str, errno| Err(Reason::PasswordFile { path: path.into(), errno });
        let missing = password(&[(PASSWORD_FILE, "/nonexistent")]);
        assert_eq!(missing, unusable("/nonexistent", Some(libc::ENOENT)));
        assert!(
            missing.unwrap_err().to_string().contains("\"/nonexistent\" cannot be read: No such")
        );
        std::fs::write(file.path(), [0xff]).unwrap();
        for unfit in [path, "/dev/zero"] {
            assert_eq!(password(&[(PASSWORD_FILE, unfit)]), unusable(unfit, None));
        }
    }
}
