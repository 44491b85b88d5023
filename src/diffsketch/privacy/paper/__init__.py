"""The paper's theorems as calculators: Theorem 1 (claimed), Lemma 1 and Theorem 2."""
