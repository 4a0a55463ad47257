// Plays every file of a folder of corpora through its door, without a fuzzer: DOOR/FILE. The names
// are printed first, so that the last one is the file of a crash.
// usage: fuzz_replay FOLDER
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <vector>

#include "data/read/text_file.h"
#include "tests/fuzz/doors.h"

namespace shardplan {
namespace {

int num_failed(const Door& door, const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files.push_back(entry.path());
  }
  std::ranges::sort(files);
  int failed = 0;
  for (const std::filesystem::path& file : files) {
    std::printf("%s\n", file.c_str());
    std::fflush(stdout);
    try {
      door.open(read_text_file(file.string()));
    } catch (const std::exception& problem) {
      std::printf("  %s\n", problem.what());
      ++failed;
    }
  }
  return failed;
}

}  // namespace
}  // namespace shardplan

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: fuzz_replay FOLDER\n");
    return 2;
  }
  const std::filesystem::path corpora = std::filesystem::absolute(argv[1]);
  shardplan::enter_temporary_folder();
  int failed = 0;
  for (const shardplan::Door& door : shardplan::doors()) {
    failed += shardplan::num_failed(door, corpora / door.name);
  }
  std::filesystem::remove_all(std::filesystem::current_path());
  std::printf("%d files failed\n", failed);
  return failed == 0 ? 0 : 1;
}
