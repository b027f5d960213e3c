//! A swap area: a device and its options, `SPEC[,priority=N][,rotational=0|1]`.

use crate::device::Device;
use crate::error::{OpenError, Reason};
use crate::open::{OpenOptions, open_wrapped};
use crate::remote::RemoteOptions;
use crate::seal::Seal;
use crate::spec::{Injection, Spec};
use highwater_platform::Medium;
use std::fmt;

const OPTIONS: &str = "priority=N, rotational=0|1";

/// A device, and the user's options for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// The device.
    pub spec: Spec,
    /// Areas of a higher priority are filled first; areas of equal priority are used in turn. Areas
    /// without a priority come last, one after the other.
    pub priority: Option<u16>,
    /// The medium, if the user overrides the reported one; `None`: as the system reports.
    pub medium: Option<Medium>,
}

impl Area {
    /// An area without options.
    pub fn new(spec: Spec) -> Area {
        Area { spec, priority: None, medium: None }
    }

    /// Reads a [`Spec`] with options behind its size: `priority=N` (0 to 65535), `rotational=0|1`.
    ///
    /// # Errors
    /// What is wrong, in one line.
    pub fn parse(text: &str) -> Result<Area, String> {
        Area::parse_with(text, Injection::Refused)
    }

    /// [`Area::parse`] of a specification that may inject faults ([`Spec::parse_with`]).
    ///
    /// # Errors
    /// What is wrong, in one line.
    pub fn parse_with(text: &str, injection: Injection) -> Result<Area, String> {
        let mut options = Vec::new();
        let mut rest = text;
        // An option has no colon: a comma before a colon is part of a path.
        while let Some((before, option)) = rest.rsplit_once(',')
            && let Some(option) = option.split_once('=').filter(|_| !option.contains(':'))
        {
            (rest, _) = (before, options.push(option));
        }
        let mut area = Area::new(Spec::parse_with(rest, injection)?);
        for (key, value) in options.into_iter().rev() {
            area.set(key, value).map_err(|what| format!("swap {text:?}: {what}"))?;
        }
        Ok(area)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let given = match key {
            "priority" => self.priority.is_some(),
            "rotational" => self.medium.is_some(),
            _ => return Err(format!("unknown option {key:?} (there are {OPTIONS})")),
        };
        match (key, value) {
            _ if given => return Err(format!("{key} is given twice")),
            ("rotational", "0") => self.medium = Some(Medium::SolidState),
            ("rotational", "1") => self.medium = Some(Medium::Rotational),
            ("rotational", _) => return Err(format!("rotational {value:?} is neither 0 nor 1")),
            _ => {
                let bad = |_| format!("priority {value:?} is not a number from 0 to {}", u16::MAX);
                self.priority = Some(value.parse().map_err(bad)?);
            }
        }
        Ok(())
    }

    /// Opens the device. The options for a server come from this process's environment
    /// ([`RemoteOptions::from_env`]).
    ///
    /// # Errors
    /// As [`open`](crate::open).
    pub fn open(&self, seal: Seal) -> Result<Box<dyn Device>, OpenError> {
        let bad = |_| OpenError { spec: self.spec.clone(), reason: Reason::BadVariable };
        self.open_wrapped(seal, &RemoteOptions::from_env().map_err(bad)?, &|device| device)
    }

    /// Opens the device, with each file and server wrapped in a device of the caller's, which sees
    /// the pages as they are stored. Of `replicate:` the pair is wrapped, not each device.
    ///
    /// # Errors
    /// As [`open`](crate::open).
    pub fn open_wrapped(
        &self,
        seal: Seal,
        remote: &RemoteOptions,
        wrap: &dyn Fn(Box<dyn Device>) -> Box<dyn Device>,
    ) -> Result<Box<dyn Device>, OpenError> {
        let options = OpenOptions { seal, remote: remote.clone(), ..OpenOptions::default() };
        let mut device = open_wrapped(&self.spec, &options, wrap)?;
        let info = device.info_mut();
        info.priority = self.priority;
        info.medium = self.medium.unwrap_or(info.medium);
        Ok(device)
    }
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)?;
        self.priority.map_or(Ok(()), |priority| write!(f, ",priority={priority}"))?;
        match self.medium {
            None => Ok(()),
            Some(Medium::SolidState) => write!(f, ",rotational=0"),
            Some(Medium::Rotational) => write!(f, ",rotational=1"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_follow_the_size() {
        use Medium::{Rotational, SolidState};
        for (text, spec, priority, medium) in [
            ("ram:64M", "ram:64M", None, None),
            ("ram:64M,priority=5", "ram:64M", Some(5), None),
            ("zram:64M:zstd,priority=0", "zram:64M:zstd", Some(0), None),
            ("dir:/a,b=c:1G,rotational=1", "dir:/a,b=c:1G", None, Some(Rotational)),
            ("dir:/a,priority=3:1G", "dir:/a,priority=3:1G", None, None),
            (
                "tier:zram:64M:lz4+dir:/a+b:1G,priority=3",
                "tier:zram:64M+dir:/a+b:1G",
                Some(3),
                None,
            ),
            ("file:/a:1G,rotational=0,priority=65535", "file:/a:1G", Some(65535), Some(SolidState)),
        ] {
            let area = Area { spec: Spec::parse(spec).unwrap(), priority, medium };
            assert_eq!(Area::parse(text), Ok(area.clone()), "{text}");
            assert_eq!(Area::parse(&area.to_string()), Ok(area), "{text}");
        }
    }

    #[test]
    fn errors_are_one_line_and_say_what_is_wrong() {
        for (text, part) in [
            ("ram:64M,prio=5", "unknown option \"prio\" (there are priority=N, "),
            ("ram:64M,priority=", "priority \"\" is not a number from 0 to 65535"),
            ("ram:64M,priority=-1", "priority \"-1\" is not"),
            ("ram:64M,priority=65536", "priority \"65536\" is not"),
            ("ram:64M,priority=1,priority=1", "priority is given twice"),
            ("ram:64M,rotational=yes", "rotational \"yes\" is neither 0 nor 1"),
            ("ram:64M,5", "bad size \"64M,5\""),
            ("priority=5", "unknown kind \"priority=5\""),
            ("ram:,priority=5", "size missing"),
            ("dir:/a\nb:1G,x=1", "\\n"),
        ] {
            let error = Area::parse(text).unwrap_err();
            assert!(error.contains(part) && error.lines().count() == 1, "{text:?}: {error}");
        }
    }

    #[test]
    fn a_device_is_as_its_area_says() {
        let area = Area::parse("ram:1M,rotational=1,priority=7").unwrap();
        let info = area.open(Seal::On).unwrap().info();
        assert_eq!((info.priority, info.medium), (Some(7), Medium::Rotational));
        assert_eq!(Area::new(area.spec).open(Seal::On).unwrap().info().priority, None);
    }
}
