// SPDX-License-Identifier: Apache-2.0
// A custom dataset whose samples are structs. A custom function creates the
// batches, or the built-in one for texts of different lengths.
#include <accelerate/accelerate.h>
#include <torch/torch.h>

/// A sample. In a `Batch` of samples, numbers become tensors.
struct Review {
  std::vector<int64_t> input_ids;
  torch::Tensor attention_mask; // undefined: padding sets it
  int64_t stars = 0;

  struct Batch {
    torch::Tensor input_ids, attention_mask, stars;
  };
};
auto tensor_fields(Review& r) {
  return std::tie(r.input_ids, r.attention_mask, r.stars);
}
auto tensor_fields(Review::Batch& b) {
  return std::tie(b.input_ids, b.attention_mask, b.stars);
}
auto field_names(const Review&) {
  return std::array{"input_ids", "attention_mask", "stars"};
}

/// Anything with `size` and `get` is a dataset. Several threads may call `get`
/// at the same time.
class Reviews {
 public:
  size_t size() const { return 6; }
  Review get(int64_t i) const {
    return {
        std::vector<int64_t>(static_cast<size_t>(1 + i % 3), 100 + i),
        {},
        i % 5};
  }
};

/// A batch of the custom collate function: the words of all reviews,
/// concatenated.
struct Packed {
  torch::Tensor words;
  torch::Tensor first_word; // of each review
};
auto tensor_fields(Packed& p) {
  return std::tie(p.words, p.first_word);
}

Packed pack(const std::vector<Review>& reviews) {
  std::vector<int64_t> words, first;
  for (const Review& review : reviews) {
    first.push_back(static_cast<int64_t>(words.size()));
    words.insert(words.end(), review.input_ids.begin(), review.input_ids.end());
  }
  return {torch::tensor(words), torch::tensor(first)};
}

int main() {
  accelerate::Accelerator accelerator;
  const accelerate::DataLoaderOptions options{
      .batch_size = 3, .shuffle = true, .seed = 42};
  accelerate::DataLoader padded(
      Reviews{}, options, accelerate::PaddingCollator({.multiple_of = 4}));
  accelerate::DataLoader packed(Reviews{}, options, pack);
  auto [padded_loader, packed_loader] = accelerator.prepare(padded, packed);
  for (auto& batch : padded_loader) {
    accelerator.print(
        "padded ",
        batch.input_ids.sizes(),
        ", ",
        batch.attention_mask.sum().item<int64_t>(),
        " words, stars ",
        batch.stars.sum().item<int64_t>());
  }
  for (auto& batch : packed_loader) {
    accelerator.print("packed ", batch.words.sizes());
  }
}
