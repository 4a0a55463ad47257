#include <doctest/doctest.h>

#include <set>

#include "data/read/library.h"
#include "tests/data/message_of.h"

using namespace shardplan;

TEST_CASE("every embedded file is the file of data/ byte for byte") {
  const std::string root = std::string(SHARDPLAN_SOURCE_DIR) + "/data/";
  REQUIRE(embedded_data().size() >= 40);
  for (const DataFile& file : embedded_data()) {
    CAPTURE(file.path);
    CHECK(read_text_file(root + std::string(file.path)) == file.text);
  }
}

TEST_CASE("a data directory gives what the embedded files give") {
  const Library embedded;
  const Library on_disk(std::string(SHARDPLAN_SOURCE_DIR) + "/data");
  CHECK(embedded.model_names() == on_disk.model_names());
  CHECK(embedded.gpu_names() == on_disk.gpu_names());
  CHECK(embedded.cluster_names() == on_disk.cluster_names());
  CHECK(embedded.framework_names() == on_disk.framework_names());
  CHECK(embedded.cluster("aws-p5").source == on_disk.cluster("aws-p5").source);
}

TEST_CASE("a directory without data is refused by name") {
  CHECK(message_of([] { Library("/nonexistent"); }) ==
        "/nonexistent: found no JSON file in models, gpus, clusters or frameworks, expected a "
        "directory with these folders");
}

TEST_CASE("names that hold a slash or end in .json are paths") {
  CHECK(is_path("./h200"));
  CHECK(is_path("my.json"));
  CHECK_FALSE(is_path("1x8-h200"));
}

TEST_CASE("file names and aliases of data/ never mean two things") {
  const Library library;
  std::set<std::string> gpus;
  for (const std::string& id : library.gpu_names()) {
    CHECK(gpus.insert(in_lower_case(id)).second);
    for (const std::string& alias : library.gpu(id).aliases) {
      CAPTURE(alias);
      CHECK(alias == in_lower_case(alias));
      CHECK(gpus.insert(alias).second);
    }
  }
  for (const std::string& name : library.cluster_names()) {
    CAPTURE(name);
    CHECK(name == in_lower_case(name));
    CHECK_FALSE(gpus.contains(name));  // NODESxGPUS-NAME takes either
  }
}

TEST_CASE("a file is read once; a library that notes has read nothing yet") {
  const Library library;
  const std::string path = "frameworks/megatron.json";
  const JsonFile& read = library.parse(path);
  CHECK(&library.parse(path) == &read);
  CHECK(&library.profile("megatron") == &library.profile("megatron"));

  std::string texts;
  const Library noting = library.noting(texts);
  noting.profile("megatron");
  noting.parse(path);
  CHECK(texts == library.text_of(path) + "\n");
}

TEST_CASE("a published name is the preset of its sizes, whatever variant it is") {
  const Library library;
  CHECK(library.published_model("Qwen/Qwen3-30B-A3B-Instruct-2507") == "qwen3-30b-a3b");
  CHECK(library.published_model("meta-llama/Meta-Llama-3-8B-Instruct") == "llama3-8b");
  CHECK(library.published_model("meta-llama/Llama-2-7b-hf") == "llama2-7b");
  CHECK(library.published_model("google/gemma-3-27b-it") == "gemma3-27b");
  CHECK(library.published_model("/models/DeepSeek-V3-0324/") == "deepseek-v3");
  CHECK(library.published_model("mistralai/Mixtral-8x7B-Instruct-v0.1") == "mixtral-8x7b");
  CHECK(library.published_model("NousResearch/Llama-2-7b-chat-hf") == "llama2-7b");
  CHECK(library.published_model("unsloth/Meta-Llama-3.1-8B-Instruct") == "llama3.1-8b");
  CHECK(library.published_model("casperhansen/llama-3-70b-fp16") == "llama3-70b");
  CHECK(library.published_model("openlm-research/open_llama_3b_v2") == "open-llama-3b");
  CHECK(library.published_model("Qwen/Qwen2.5-7B-Instruct-1M") == "qwen2.5-7b");
  CHECK(library.published_model("codellama/CodeLlama-13b-Instruct-hf") == "codellama-13b");
  CHECK(library.published_model("ZhipuAI/GLM-4-9B-0414") == "glm-4-9b-0414");
  CHECK(library.published_model("unsloth/llama-3-8b-Instruct-bnb-4bit") == "llama3-8b");
  CHECK(library.published_model("unsloth/Qwen3-8B-unsloth-bnb-4bit") == "");
  // Of one line, with sizes of their own.
  CHECK(library.published_model("mistralai/Mistral-7B-Instruct-v0.1") == "mistral-7b-v0.1");
  CHECK(library.published_model("mistralai/Mistral-7B-Instruct-v0.2") == "mistral-7b-v0.2");
  CHECK(library.published_model("mistralai/Mistral-7B-Instruct-v0.3") == "mistral-7b-v0.3");
  CHECK(library.published_model("mistral-community/Mixtral-8x22B-v0.1") == "mixtral-8x22b-v0.1");
  CHECK(library.published_model("mistralai/Mixtral-8x22B-Instruct-v0.1") == "mixtral-8x22b");
  CHECK(library.published_model("mistralai/Mistral-Small-Instruct-2409") == "mistral-small-22b");
  CHECK(library.published_model("mistralai/Mistral-Small-24B-Instruct-2501") ==
        "mistral-small-24b");
  CHECK(library.published_model("THUDM/glm-4-9b-chat") == "");
  // Sizes of its own.
  CHECK(library.published_model("Qwen/Qwen3-Next-80B-A3B-Instruct") == "");
  CHECK(library.published_model("Qwen/Qwen2.5-VL-7B-Instruct") == "");
  CHECK(library.published_model("") == "");
  CHECK(library.published_model("-instruct") == "");
}

TEST_CASE("a model may be asked for by its published name, unless a file has it") {
  const Library library;
  CHECK(library.model_file("Qwen/Qwen3-30B-A3B-Instruct-2507").name == "qwen3-30b-a3b");
  CHECK(library.model_file("Llama-3.1-8B-Instruct").name == "llama3.1-8b");
  CHECK(library.model("deepseek-ai/DeepSeek-V3-Base").model.moe.num_experts == 256);
  CHECK(
      message_of([&] {
        library.model_file("Qwen/Qwen9-8B");
      }).starts_with("model: found \"Qwen/Qwen9-8B\", a published name whose sizes are not known"));
  // A folder or a file of that name is what is meant.
  const std::string folder = std::string(SHARDPLAN_SOURCE_DIR) + "/data";
  CHECK(message_of([&] { library.model_file(folder); }).starts_with(folder + ": found"));
}
