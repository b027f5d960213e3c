//! All tests of the platform, in one program. A new file beside this one is named here.

mod conformance;
