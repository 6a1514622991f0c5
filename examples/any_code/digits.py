"""scikit-learn: does a second hidden layer help on handwritten digits?

    python examples/any_code/digits.py [SEEDS]

Each seed chooses the split of the data and the initial weights. The metric is the error on a third of the images.
"""

import sys

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

import partwise


def train(seed, report, hidden=(32,)):
    images, labels = load_digits(return_X_y=True)
    images, test_images, labels, test_labels = train_test_split(images, labels, test_size=1 / 3, random_state=seed)
    model = MLPClassifier(hidden, max_iter=60, early_stopping=False, random_state=seed)
    for epoch in range(60):
        model.partial_fit(images, labels, classes=range(10))
        if epoch % 10 == 9:
            report(epoch + 1, 1 - model.score(test_images, test_labels))
    return 1 - model.score(test_images, test_labels)


if __name__ == "__main__":
    arms = {"one layer": {}, "two layers": {"hidden": [32, 32]}, "wide": {"hidden": [64]}}
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    print(partwise.compare_function(train, arms, metric="test error", margin=0.01, seeds=seeds, name="digits"))
