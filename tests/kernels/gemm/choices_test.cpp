#include "kernels/gemm/choices.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <vector>

namespace shardplan {
namespace {

// A folder of its own, gone afterwards.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "products_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace

TEST_CASE("choices come back from their file as they were") {
  const Folder folder;
  const std::string path = folder / "new/products";
  CHECK(read_gemm_choices(path).empty());
  const GemmChoices choices = {
      {"NVIDIA H200, cuBLAS 13.1.0, bf16 to bf16 8x8x8", {1, 0xffffffffffffffffU, 3}},
      {"NVIDIA H200, cuBLAS 13.1.0, bf16 to fp32 8x8x8", {}}};
  write_gemm_choices(path, choices);
  CHECK(read_gemm_choices(path) == choices);
}

TEST_CASE("a line that is no choice is named by file and line") {
  const Folder folder;
  const std::string path = folder / "products";
  for (const char* line : {"", "1 2 3 4 5 6 7 8", "1 2 3 4 5 6 7 name", "x 2 3 4 5 6 7 8 name"}) {
    std::ofstream(path) << "1 2 3 4 5 6 7 8 a product\n" << line << "\n";
    CAPTURE(line);
    CHECK_THROWS_WITH_AS(read_gemm_choices(path),
                         (path + ":2: found '" + line +
                          "', expected 8 hexadecimal numbers and the name of a product")
                             .c_str(),
                         std::runtime_error);
  }
}

TEST_CASE("what is no file of choices is not taken for an absent one") {
  const Folder folder;
  CHECK_THROWS_WITH_AS(read_gemm_choices(folder / ""), (folder / "" + ": cannot be read").c_str(),
                       std::runtime_error);
}

TEST_CASE("processes that write at once leave the choices of one of them") {
  const Folder folder;
  const std::string path = folder / "products";
  const auto choices_of = [](std::uint64_t writer) {
    return GemmChoices{{"a product", {writer}}, {"another one", {writer}}};
  };
  write_gemm_choices(path, choices_of(0));
  std::vector<pid_t> writers;
  for (const std::uint64_t writer : {0, 1}) {
    writers.push_back(fork());
    if (writers.back() == 0) {
      try {
        for (int i = 0; i < 500; ++i) { write_gemm_choices(path, choices_of(writer)); }
        _exit(0);
      } catch (...) { _exit(1); }
    }
  }
  for (int i = 0; i < 500; ++i) {
    const GemmChoices found = read_gemm_choices(path);
    CHECK((found == choices_of(0) || found == choices_of(1)));
  }
  for (const pid_t writer : writers) {
    int status = 0;
    CHECK(waitpid(writer, &status, 0) == writer);
    CHECK(status == 0);
  }
}

}  // namespace shardplan
