// A long time for a compiler, and some memory: 24 classes of maps of strings, and a regex.
#include <algorithm>
#include <map>
#include <regex>
#include <string>
#include <vector>

template <int N> struct Level {
    std::map<int, std::vector<std::string>> names;
    int add(int x) {
        names[x % N].push_back(std::to_string(N));
        std::sort(names[x % N].begin(), names[x % N].end());
        return names.size() + Level<N - 1>().add(x);
    }
};
template <> struct Level<0> {
    int add(int x) { return x; }
};

int main(int count, char **arguments) {
    std::regex letters("a+");
    return Level<24>().add(count) + std::regex_match(arguments[0], letters);
}
