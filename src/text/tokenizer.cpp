// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <cstring>
#include <fstream>
#include <mutex>
#include <sstream>
#include <utility>

#include "accelerate/text.h"
#include "core/base/str.h"
#include "text/batch.h"
#include "text/pipeline.h"

namespace accelerate {

using text::Scratch;

/// The steps of the tokenizer, and a pool of memory for them.
class Tokenizer::Impl {
 public:
  explicit Impl(text::TokenizerComponents components)
      : pipeline(std::move(components)) {}

  /// Takes a `Scratch` from the pool; the destructor returns it.
  class Lease {
   public:
    explicit Lease(const Impl& impl) : impl_(impl), scratch_(impl.take()) {}
    ~Lease() { impl_.give_back(std::move(scratch_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Scratch& operator*() const { return *scratch_; }

   private:
    const Impl& impl_;
    std::unique_ptr<Scratch> scratch_;
  };

  Encoding encode(
      const TextInput& input,
      const EncodeOptions& options,
      Scratch& scratch) const {
    pipeline.tokenize(input.first, scratch, scratch.first);
    if (input.second) {
      pipeline.tokenize(*input.second, scratch, scratch.second);
    }
    return text::post_process(
        components().post_processor,
        scratch.first,
        input.second ? &scratch.second : nullptr,
        options.truncation.value_or(components().truncation),
        options.add_special_tokens);
  }

  const text::TokenizerComponents& components() const {
    return pipeline.components();
  }

  const text::Pipeline pipeline;

 private:
  std::unique_ptr<Scratch> take() const {
    const std::lock_guard lock(mutex_);
    if (stock_.empty()) {
      return std::make_unique<Scratch>();
    }
    auto scratch = std::move(stock_.back());
    stock_.pop_back();
    return scratch;
  }

  void give_back(std::unique_ptr<Scratch> scratch) const {
    const std::lock_guard lock(mutex_);
    stock_.push_back(std::move(scratch));
  }

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> stock_;
};

namespace {

std::string read_whole(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream content;
  if (!in || !(content << in.rdbuf())) {
    throw SystemError(str_cat(
        "[Tokenizer::from_file] Cannot read ",
        file.string(),
        ": ",
        std::strerror(errno),
        ". Pass a readable tokenizer.json or vocab.txt"));
  }
  return std::move(content).str();
}

} // namespace

Tokenizer::Tokenizer(std::shared_ptr<const Impl> impl)
    : impl_(std::move(impl)) {}

Tokenizer Tokenizer::from_folder(const std::filesystem::path& folder) {
  for (const char* name : {"tokenizer.json", "vocab.txt"}) {
    if (std::filesystem::exists(folder / name)) {
      return from_file(folder / name);
    }
  }
  throw ConfigError(str_cat(
      "[Tokenizer::from_folder] ",
      folder.string(),
      " has neither tokenizer.json nor vocab.txt. Pass the folder of a Hugging "
      "Face tokenizer"));
}

Tokenizer Tokenizer::from_file(const std::filesystem::path& file) {
  const std::string content = read_whole(file);
  if (file.extension() != ".txt") {
    return Tokenizer(std::make_shared<const Impl>(
        text::read_tokenizer_json(content, file.string())));
  }
  text::BertSettings settings;
  const auto config = file.parent_path() / "tokenizer_config.json";
  if (std::filesystem::exists(config)) {
    settings = text::read_bert_settings(read_whole(config), config.string());
  }
  return Tokenizer(std::make_shared<const Impl>(
      text::read_vocab_txt(content, settings, file.string())));
}

Tokenizer Tokenizer::from_json(std::string_view json) {
  return Tokenizer(std::make_shared<const Impl>(
      text::read_tokenizer_json(json, "tokenizer.json")));
}

Encoding Tokenizer::encode(const TextInput& input, const EncodeOptions& options)
    const {
  const Impl::Lease scratch(*impl_);
  Encoding encoding = impl_->encode(input, options, *scratch);
  text::pad({&encoding, 1}, options.padding.value_or(padding()));
  return encoding;
}

std::vector<Encoding> Tokenizer::encode_batch(
    std::span<const TextInput> inputs,
    const EncodeOptions& options) const {
  std::vector<Encoding> encodings(inputs.size());
  const auto encode_range = [&](text::BatchRange range) {
    const Impl::Lease scratch(*impl_);
    while (const auto index = range.next()) {
      encodings[*index] = impl_->encode(inputs[*index], options, *scratch);
    }
  };
  text::run_batch(inputs.size(), options.num_threads, encode_range);
  text::pad(encodings, options.padding.value_or(padding()));
  return encodings;
}

std::vector<Encoding> Tokenizer::encode_batch(
    const std::vector<std::string>& texts,
    const EncodeOptions& options) const {
  const std::vector<TextInput> inputs(texts.begin(), texts.end());
  return encode_batch(inputs, options);
}

std::string Tokenizer::decode(
    std::span<const int32_t> ids,
    bool skip_special_tokens) const {
  const auto& added = impl_->components().added_tokens;
  std::vector<std::string> tokens;
  for (const int32_t id : ids) {
    auto token = id_to_token(id);
    if (!token) {
      continue;
    }
    const auto* found =
        skip_special_tokens ? added.find_content(*token) : nullptr;
    if (found == nullptr || !found->special) {
      tokens.push_back(*std::move(token));
    }
  }
  return impl_->components().decoder.decode(tokens);
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  if (const auto* added =
          impl_->components().added_tokens.find_content(token)) {
    return added->id;
  }
  const int32_t id = impl_->components().vocabulary.id(token);
  return id == text::StringMap::kNone ? std::nullopt : std::optional(id);
}

std::optional<std::string> Tokenizer::id_to_token(int32_t id) const {
  if (const auto* added = impl_->components().added_tokens.find_id(id)) {
    return added->pattern;
  }
  const std::string* token = impl_->components().vocabulary.token(id);
  return token == nullptr ? std::nullopt : std::optional(*token);
}

int32_t Tokenizer::vocab_size() const {
  const auto& vocabulary = impl_->components().vocabulary;
  auto size = static_cast<int32_t>(vocabulary.size());
  for (const auto& token : impl_->components().added_tokens.all()) {
    size += vocabulary.id(token.content) == text::StringMap::kNone ? 1 : 0;
  }
  return size;
}

const Truncation& Tokenizer::truncation() const {
  return impl_->components().truncation;
}

const Padding& Tokenizer::padding() const {
  return impl_->components().padding;
}

std::string Tokenizer::normalize(std::string_view text) const {
  const Impl::Lease scratch(*impl_);
  return impl_->pipeline.normalize(text, *scratch);
}

std::vector<TextWord> Tokenizer::pre_tokenize(std::string_view text) const {
  const Impl::Lease scratch(*impl_);
  return impl_->pipeline.pre_tokenize(text, *scratch);
}

} // namespace accelerate
