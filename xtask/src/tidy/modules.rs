//! Which file of a crate uses which: modules by path, names followed through re-exports.
//!
//! ```text
//! Crate -- Module x n: a file -- modules: names of its `mod x;`
//!                            |- bound: name -> path, from its `use` items
//!                            \- named: paths that its code uses, with their lines
//! ```

use super::files::Tree;
use super::source::File;
use super::tokens::{flatten, text};
use proc_macro2::Span;
use std::collections::{BTreeMap, HashMap, HashSet};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, Meta, UseTree};

/// Re-exports of re-exports are followed so many times.
const FOLLOWED_MAX: usize = 8;

/// The sources of a crate, without its tests.
pub(super) struct Crate {
    modules: Vec<Module>,
    /// By path in the crate: indices in `modules`. A library and a program share the root.
    by_path: HashMap<Vec<String>, Vec<usize>>,
}

struct Module {
    file: String,
    path: Vec<String>,
    modules: HashSet<String>,
    bound: HashMap<String, Vec<String>>,
    named: Vec<(Vec<String>, usize)>,
}

/// All crates of the tree.
pub(super) fn crates(tree: &Tree) -> Vec<Crate> {
    let manifests = tree.files().iter().filter(|file| file.name() == "Cargo.toml");
    let sources = manifests.map(|manifest| {
        let base = manifest.path.trim_end_matches("Cargo.toml");
        format!("{base}src/")
    });
    sources.map(|sources| Crate::new(tree, &sources)).collect()
}

impl Crate {
    fn new(tree: &Tree, sources: &str) -> Crate {
        let inside = tree.files().iter().filter(|file| !file.is_test());
        let modules: Vec<Module> = inside.filter_map(|file| Module::new(file, sources)).collect();
        let mut by_path: HashMap<Vec<String>, Vec<usize>> = HashMap::new();
        for (index, module) in modules.iter().enumerate() {
            by_path.entry(module.path.clone()).or_default().push(index);
        }
        Crate { modules, by_path }
    }

    /// The path of a file of this crate.
    pub(super) fn path(&self, index: usize) -> &str {
        &self.modules[index].file
    }

    /// By file: the files that define what it uses, and the first line that does.
    pub(super) fn dependencies(&self) -> BTreeMap<usize, BTreeMap<usize, usize>> {
        let mut all = BTreeMap::new();
        for (from, module) in self.modules.iter().enumerate() {
            let uses: &mut BTreeMap<usize, usize> = all.entry(from).or_default();
            for (path, line) in &module.named {
                let found = self.absolute(module, path).and_then(|path| self.define(&path, 0));
                if let Some(to) = found.filter(|to| *to != from) {
                    let first = uses.entry(to).or_insert(*line);
                    *first = (*first).min(*line);
                }
            }
        }
        all
    }

    /// A path of a module's code, from the root of the crate; `None` for what is elsewhere.
    fn absolute(&self, module: &Module, path: &[String]) -> Option<Vec<String>> {
        let first = path.first()?.as_str();
        let supers = path.iter().take_while(|part| *part == "super").count();
        let here = &module.path;
        match first {
            "crate" => Some(path[1..].to_vec()),
            "self" => Some([here, &path[1..]].concat()),
            "super" => Some([&here[..here.len().checked_sub(supers)?], &path[supers..]].concat()),
            _ if module.modules.contains(first) => Some([here, path].concat()),
            _ => {
                let bound = module.bound.get(first)?;
                let full = [bound, &path[1..]].concat();
                (bound != path).then(|| self.absolute(module, &full)).flatten()
            }
        }
    }

    /// The file that defines what `path` names; `None` for modules and for what is not found.
    fn define(&self, path: &[String], followed: usize) -> Option<usize> {
        let is_module = |length: &usize| self.by_path.contains_key(&path[..*length]);
        let length = (0..=path.len()).rev().find(is_module)?;
        let indices = &self.by_path[&path[..length]];
        let name = path.get(length)?;
        if name == "*" {
            return indices.first().copied();
        }
        let binds = |index: &&usize| self.modules[**index].bound.contains_key(name);
        let Some(index) = indices.iter().find(binds).filter(|_| followed < FOLLOWED_MAX) else {
            return indices.first().copied();
        };
        let module = &self.modules[*index];
        let full = [&module.bound[name], &path[length + 1..]].concat();
        let absolute = self.absolute(module, &full)?;
        self.define(&absolute, followed + 1)
    }
}

impl Module {
    fn new(file: &File, sources: &str) -> Option<Module> {
        let inside = file.path.strip_prefix(sources)?.strip_suffix(".rs")?;
        let inside = inside.strip_suffix("/mod").unwrap_or(inside);
        let path = match inside {
            "lib" | "main" => Vec::new(),
            inside => inside.split('/').map(str::to_owned).collect(),
        };
        let mut module = Module {
            file: file.path.clone(),
            path,
            modules: HashSet::new(),
            bound: HashMap::new(),
            named: Vec::new(),
        };
        let rust = file.rust()?;
        module.declare(&rust.syntax.items);
        Names { module: &mut module, inner: 0 }.visit_file(&rust.syntax);
        Some(module)
    }

    fn declare(&mut self, items: &[Item]) {
        for item in items {
            match item {
                Item::Mod(item) if item.content.is_none() => {
                    self.modules.insert(item.ident.to_string());
                }
                Item::Use(item) => {
                    let mut leaves = Vec::new();
                    add_leaves(&item.tree, &mut Vec::new(), &mut leaves);
                    for (name, path, _) in leaves {
                        self.bound.insert(name, path);
                    }
                }
                _ => {}
            }
        }
    }
}

/// A name that a `use` brings, what it names, and where.
type Leaf = (String, Vec<String>, Span);

fn add_leaves(tree: &UseTree, prefix: &mut Vec<String>, leaves: &mut Vec<Leaf>) {
    let mut leaf = |name: String, last: &str, span: Span| {
        let last = (last != "self").then(|| last.to_owned());
        let path: Vec<String> = prefix.iter().cloned().chain(last).collect();
        leaves.push((name, path, span));
    };
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            add_leaves(&path.tree, prefix, leaves);
            prefix.pop();
        }
        UseTree::Group(group) => {
            group.items.iter().for_each(|tree| add_leaves(tree, prefix, leaves));
        }
        UseTree::Name(name) if name.ident == "self" => {
            let own = prefix.last().cloned().unwrap_or_default();
            leaf(own, "self", name.span());
        }
        UseTree::Name(name) => leaf(name.ident.to_string(), &name.ident.to_string(), name.span()),
        UseTree::Rename(name) => {
            leaf(name.rename.to_string(), &name.ident.to_string(), name.span());
        }
        UseTree::Glob(glob) => leaf("*".to_owned(), "*", glob.span()),
    }
}

/// Collects the paths that code names, but for test code.
struct Names<'a> {
    module: &'a mut Module,
    /// Inline modules around the place.
    inner: usize,
}

impl Names<'_> {
    /// What is relative to an inline module is in this file.
    fn add(&mut self, mut path: Vec<String>, span: Span) {
        let supers = path.iter().take_while(|part| *part == "super").count();
        if self.inner > 0 && supers > 0 {
            path.drain(..self.inner.min(supers));
        }
        self.module.named.push((path, span.start().line));
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    let is_test = |attribute: &Attribute| match &attribute.meta {
        Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    };
    attributes.iter().any(is_test)
}

impl<'ast> Visit<'ast> for Names<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes: &[Attribute] = match item {
            Item::Mod(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            _ => &[],
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.inner += 1;
        visit::visit_item_mod(self, item);
        self.inner -= 1;
    }

    /// An import that others may use is a re-export: its file depends on it only where it uses it.
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if matches!(item.vis, syn::Visibility::Inherited) {
            let mut leaves = Vec::new();
            add_leaves(&item.tree, &mut Vec::new(), &mut leaves);
            leaves.into_iter().for_each(|(_, path, span)| self.add(path, span));
        }
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|part| part.ident.to_string()).collect();
        self.add(names, path.span());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        let tokens = flatten(mac.tokens.clone());
        let mut index = 0;
        while index < tokens.len() {
            let mut path = vec![tokens[index].text.clone()];
            let line = tokens[index].line;
            while text(&tokens, index + 1) == ":" && text(&tokens, index + 2) == ":" {
                path.push(text(&tokens, index + 3).to_owned());
                index += 3;
            }
            index += 1;
            self.module.named.push((path, line));
        }
        visit::visit_macro(self, mac);
    }
}
