"""The embedding: a table with a row of numbers for every symbol.

Read next: `dropout.py`.
"""

from ..backend import scatter_add
from ..op import op
from .softmax import check_ids


@op("ids:int (...), table (V, D) -> y (..., D)")
def embedding(ids, table):
    """Look up the row of every id: y = table[ids]. Going back, a row gets the sum of dy over all places where it stood.

    The same as a product with one-hot rows, without the zeros. Keeps the ids.
    """
    V = table.shape[0]
    check_ids(ids, V, "ids")

    def backward(dy):
        return None, scatter_add(ids.reshape(-1), dy, V)

    return table[ids], backward
