#include "kernels/gemm/choices.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <stdexcept>

namespace shardplan {
namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

[[noreturn]] void refuse(const std::string& path, int number, const std::string& line) {
  std::ostringstream text;
  text << path << ":" << number << ": found '" << line
       << "', expected 8 hexadecimal numbers and the name of a product";
  throw std::runtime_error(text.str());
}

}  // namespace

std::string gemm_choices_path() {
  if (std::string named = variable("SHARDPLAN_PRODUCTS"); !named.empty()) {
    return named;
  }
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) {
    return cache + "/shardplan/products";
  }
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.cache/shardplan/products";
}

GemmChoices read_gemm_choices(const std::string& path) {
  GemmChoices choices;
  std::ifstream file(path);
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    std::istringstream words(line);
    GemmAlgorithm algorithm = {};
    for (std::uint64_t& word : algorithm) { words >> std::hex >> word; }
    std::string name;
    if (!std::getline(words >> std::ws, name) || name.empty()) {
      refuse(path, number, line);
    }
    choices[name] = algorithm;
  }
  std::error_code unseen;  // where nobody can see a file, there is none
  if (file.bad() || (!file.is_open() && std::filesystem::exists(path, unseen))) {
    throw std::runtime_error(path + ": cannot be read");
  }
  return choices;
}

// Under another name first, one that no other process takes, so that no reader finds half of it.
void write_gemm_choices(const std::string& path, const GemmChoices& choices) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) {
    std::filesystem::create_directories(folder);
  }
  const std::string unfinished = path + ".unfinished." + std::to_string(std::random_device{}());
  {
    std::ofstream file(unfinished);
    for (const auto& [name, algorithm] : choices) {
      for (const std::uint64_t word : algorithm) { file << std::hex << word << ' '; }
      file << name << '\n';
    }
    if (!file.flush()) {
      std::error_code unseen;
      std::filesystem::remove(unfinished, unseen);
      throw std::runtime_error(unfinished + ": cannot be written");
    }
  }
  std::filesystem::rename(unfinished, path);
}

}  // namespace shardplan
