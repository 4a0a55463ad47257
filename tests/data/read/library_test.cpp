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
  CHECK(library.published_model("THUDM/glm-4-9b-chat") == "glm-4-9b");
  // Sizes of its own.
  CHECK(library.published_model("Qwen/Qwen3-Omni-30B-A3B-Instruct") == "");
  CHECK(library.published_model("") == "");
  CHECK(library.published_model("-instruct") == "");
}

TEST_CASE("names of 2025 and 2026 are found without dates, types and organisations") {
  const Library library;
  CHECK(library.published_model("openai/gpt-oss-20b") == "gpt-oss-20b");
  CHECK(library.published_model("unsloth/gpt-oss-120b-BF16") == "gpt-oss-120b");
  CHECK(library.published_model("Qwen/Qwen3-Next-80B-A3B-Thinking-FP8") == "qwen3-next-80b-a3b");
  CHECK(library.published_model("Qwen/Qwen3-Coder-Next") == "qwen3-next-80b-a3b");
  CHECK(library.published_model("Qwen/Qwen3.6-27B") == "qwen3.5-27b");
  CHECK(library.published_model("Qwen/Qwen2.5-VL-7B-Instruct") == "qwen2.5-vl-7b");
  CHECK(library.published_model("Qwen/QwQ-32B") == "qwen2.5-32b");
  CHECK(library.published_model("Qwen/Qwen3-14B-FP8") == "qwen3-14b");
  CHECK(library.published_model("deepseek-ai/DeepSeek-V3.2-Exp") == "deepseek-v3.2");
  CHECK(library.published_model("deepseek-ai/DeepSeek-V4-Flash-Base") == "deepseek-v4-flash");
  CHECK(library.published_model("nvidia/GLM-5-NVFP4") == "glm-5");
  CHECK(library.published_model("MiniMaxAI/MiniMax-M2.5") == "minimax-m2");
  CHECK(library.published_model("moonshotai/Kimi-Linear-48B-A3B-Instruct") ==
        "kimi-linear-48b-a3b");
  CHECK(library.published_model("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16") ==
        "nemotron-3-nano-30b-a3b");
  CHECK(library.published_model("nvidia/Llama-3_3-Nemotron-Super-49B-v1_5") ==
        "llama-3.3-nemotron-super-49b");
  CHECK(library.published_model("allenai/OLMo-2-1124-7B-Instruct") == "olmo-2-7b");
  CHECK(library.published_model("allenai/Olmo-3-7B-Think") == "olmo-3-7b");
  CHECK(library.published_model("google/gemma-3n-E4B-it") == "gemma-3n-e4b");
  CHECK(library.published_model("baidu/ERNIE-4.5-21B-A3B-PT") == "ernie-4.5-21b-a3b");
  CHECK(library.published_model("ibm-granite/granite-4.0-h-tiny-base") == "granite-4.0-h-tiny");
  CHECK(library.published_model("mistralai/Ministral-3-8B-Instruct-2512") == "ministral-3-8b");
  CHECK(library.published_model("stabilityai/stablelm-2-1_6b-chat") == "stablelm-2-1.6b");
}

TEST_CASE("a model may be asked for by its published name, unless a file has it") {
  const Library library;
  CHECK(library.model_file("Qwen/Qwen3-30B-A3B-Instruct-2507").name == "qwen3-30b-a3b");
  CHECK(library.model_file("Llama-3.1-8B-Instruct").name == "llama3.1-8b");
  CHECK(library.model("deepseek-ai/DeepSeek-V3-Base").model.moe.num_experts == 256);
  CHECK(message_of([&] { library.model_file("Qwen/Qwen9-8B"); })
            .starts_with(
                "model: found \"Qwen/Qwen9-8B\", which is not shipped, and nothing is downloaded"));
  // A folder or a file of that name is what is meant.
  const std::string folder = std::string(SHARDPLAN_SOURCE_DIR) + "/data";
  CHECK(message_of([&] { library.model_file(folder); }).starts_with(folder + ": found"));
}
