//! All tests of the platform, in one program. List every new test file here.

mod conformance;
